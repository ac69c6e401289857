"""Reads the block tables of a real decode step from an .npz file, for `apclab decode --tables`."""

import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apclab.blocks import BlockTable
from apclab.cli.terminal import CommandError
from apclab.specs import ModelShape

_REQUIRED = ("block_tables", "seq_lens")
_HEADS = ("num_heads", "num_kv_heads", "head_size")
_LARGEST = 2**31 - 1  # of int32
_UNREADABLE = (
    *(ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, NotImplementedError),  # encrypted; packed in a way that Python cannot unpack
)
# bytes of one array: ids of 16 M blocks; a real step has a hundred thousand
_MOST_BYTES = 2**26
_KNOWN = (*_REQUIRED, "num_blocks", "block_size", *_HEADS)


def read_tables(path: Path, *, block_size: int) -> tuple[BlockTable, ModelShape | None]:
    """Read one decode step: its block tables and, when the file holds it, the attention shape.

    Args:
        path: an .npz with block_tables int32 [batch, max_blocks] and seq_lens int32 [batch];
            num_blocks, block_size, num_heads, num_kv_heads and head_size are optional integers.
        block_size: tokens per block where the file does not say.

    Raises:
        CommandError: with status 2, the file is none of these or too large; the message
            names file and array.
    """
    arrays = _load(path)
    if missing := [name for name in _REQUIRED if name not in arrays]:
        there = f"the file holds {', '.join(arrays) or 'nothing that is known'}"
        raise CommandError(2, f"{path}: {' and '.join(missing)} missing; {there}")
    numbers = {name: _integer(path, name, arrays[name]) for name in _KNOWN[2:] if name in arrays}
    try:
        table = BlockTable(
            arrays["block_tables"], arrays["seq_lens"], numbers.get("block_size", block_size)
        )
        if "num_blocks" in numbers:
            _check_pool(table, numbers["num_blocks"])
        return table, _shape(path, numbers)
    except (TypeError, ValueError) as error:
        raise CommandError(2, f"{path}: {error}") from error


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # before it is opened: a pipe would wait for a writer, a device never ends
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise CommandError(2, f"{path}: not a regular file; give a file of numpy.savez")
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise CommandError(2, f"{path}: not an .npz file; write it with numpy.savez")
            _check_sizes(path, zipfile.ZipFile(file))
        # pickles can run code, so object arrays are refused
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in _KNOWN if name in archive.files}
    except OSError as error:
        raise CommandError(2, f"{path}: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise CommandError(2, f"{path}: not readable as plain .npz arrays ({error})") from error


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse what would unpack to more than any block table, before a byte is unpacked."""
    for name in _KNOWN:
        for member in archive.infolist():
            if member.filename == f"{name}.npy" and member.file_size > _MOST_BYTES:
                megabytes, ids = member.file_size / 1e6, member.file_size // 4
                raise CommandError(
                    2, f"{path}: {name} unpacks to {megabytes:,.0f} MB ({ids:,} ids of 4 bytes); "
                    f"at most {_MOST_BYTES / 1e6:.0f} MB are read"
                )  # fmt: skip


def _integer(path: Path, name: str, array: NDArray[Any]) -> int:
    if array.size != 1 or array.dtype.kind not in "iu":
        came = f"{array.dtype} of shape {list(array.shape)}"
        raise CommandError(2, f"{path}: {name} must be one integer, got {came}")
    number = int(array.reshape(())[()])
    if abs(number) > _LARGEST:
        raise CommandError(2, f"{path}: {name} must be at most {_LARGEST}, got {number}")
    return number


def _check_pool(table: BlockTable, num_blocks: int) -> None:
    # padding is 0, so the largest id is a block that is read
    if (largest := int(table.block_tables.max())) >= num_blocks:
        row, column = np.argwhere(table.block_tables == largest)[0].tolist()
        raise ValueError(
            f"block_tables must hold ids below num_blocks ({num_blocks}), "
            f"got {largest} in row {row}, column {column}"
        )


def _shape(path: Path, numbers: dict[str, int]) -> ModelShape | None:
    heads = {name: numbers[name] for name in _HEADS if name in numbers}
    if not heads:
        return None
    if len(heads) < len(_HEADS):
        missing = [name for name in _HEADS if name not in heads]
        raise ValueError(f"{', '.join(heads)} given without {' and '.join(missing)}")
    return ModelShape(path.stem, num_layers=1, source=path.name, **heads)
