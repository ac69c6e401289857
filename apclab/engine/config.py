"""How the engine schedules: every knob, checked. Names and defaults are vLLM's."""

from dataclasses import dataclass

from apclab.arguments import one_of, truth, whole_number

POLICIES = ("v1", "v0")
QUEUES = ("fcfs", "priority", "lpm")
# tokens of a step where nothing else is asked for: vLLM's defaults for a server, then and now
BATCHED_TOKENS = {"v1": 8192, "v0": 2048}
_SWITCHES = (
    *("enable_chunked_prefill", "long_prefill_token_threshold_adaptive"),
    *("scheduler_reserve_full_isl", "drop_last_block"),
)
_V1_ALONE = (
    *("max_num_active_seqs", "long_prefill_token_threshold", "prefill_schedule_interval"),
    *_SWITCHES,
)


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine.

    Attributes:
        policy: "v1": prefill and decode share steps under one token budget, as vLLM 0.33; "v0":
            steps of either kind, prefill first, as vLLM in May 2024.
        queue: who is admitted next: "fcfs" as they came; "priority" by (priority, arrival); "lpm"
            the longest cached prefix first, as SGLang's option. lpm and priority need v1.
        max_num_batched_tokens: tokens of a step.
        max_num_seqs: requests that run at a time.
        max_num_active_seqs: the same for admissions alone; None: max_num_seqs.
        max_model_len: a request ends when it is so long; None: no limit.
        enable_chunked_prefill: a prompt may be cut to the rest of the budget (v1).
        long_prefill_token_threshold: most prompt tokens of one request in a step while others are
            there; 0: no such limit (v1).
        long_prefill_token_threshold_adaptive: that limit is not below the budget over all requests.
        prefill_schedule_interval: prefill is held back for this many steps after one that carried
            it, while something decodes and the queue was drained (v1).
        scheduler_reserve_full_isl: admit only whom the free blocks can hold whole (v1; v0 always
            does).
        drop_last_block: the last block of each hit is computed anew, as with EAGLE and MTP (v1);
            whoever makes the pool gives it to the pool.

    Raises:
        TypeError: a value is of another type.
        ValueError: a value is out of range, or not what the policy knows.
    """

    policy: str = "v1"
    queue: str = "fcfs"
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    scheduler_reserve_full_isl: bool = True
    drop_last_block: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        one_of("policy", self.policy, POLICIES)
        one_of("queue", self.queue, QUEUES)
        if self.policy == "v0" and self.queue != "fcfs":
            raise ValueError(f"policy v0 knows the queue fcfs only, got {self.queue!r}")
        for name in ("max_num_batched_tokens", "max_num_seqs", "prefill_schedule_interval"):
            whole_number(name, getattr(self, name), 1)
        for name in ("max_num_active_seqs", "max_model_len"):
            if (value := getattr(self, name)) is not None:
                whole_number(name, value, 1)
        whole_number("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in _SWITCHES:
            truth(name, getattr(self, name))
        for name in _V1_ALONE if self.policy == "v0" else ():
            if (value := getattr(self, name)) != getattr(EngineConfig, name):
                raise ValueError(f"policy v0 knows no {name}, got {value!r}")
