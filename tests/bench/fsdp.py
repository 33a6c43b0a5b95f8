"""Step of a GPT of 3.3 M parameters, 16 rows, by two ranks that shard them: fsdp against PyTorch's fully_shard"""
# needs data: text
import sys

import gpt_steps
import harness

PEER = "torch fully_shard"

if __name__ == "__main__":
    options = gpt_steps.arguments(__doc__)
    measured = harness.interleave(options.rounds, {
        gpt_steps.ALONE: gpt_steps.peer(gpt_steps.ALONE, options),
        PEER: gpt_steps.peer(PEER, options),
        "fsdp, gloo": gpt_steps.convoy("fsdp", options, "backend=gloo"),
        "fsdp, mpi": gpt_steps.convoy("fsdp", options, "backend=mpi"),
        "Shards, gloo": lambda: harness.program("gloo", "gpt", options.steps, options.warm,
                                                text=harness.TOP / ".data" / "text.txt")["step_seconds"],
        "fsdp, gloo, overlap": gpt_steps.convoy("fsdp", options, "backend=gloo", "strategy.overlap=true"),
        "fsdp, gloo, no overlap": gpt_steps.convoy("fsdp", options, "backend=gloo", "strategy.overlap=false"),
    }, reference=PEER, expected=gpt_steps.expected(PEER))
    gpt_steps.report(measured, PEER)
    ok = True
    for name in ("fsdp, gloo", "fsdp, mpi"):
        ok &= harness.check(f"{name} against {PEER}", harness.median_ratio(measured, name, PEER), 0.66, aim=0.60)
    ok &= harness.check(f"Shards, gloo against {PEER}", harness.median_ratio(measured, "Shards, gloo", PEER), 0.8)
    for other in ("fsdp, gloo, overlap", "fsdp, gloo, no overlap"):
        ok &= harness.check(f"fsdp, gloo, default against {other}",
                              harness.median_ratio(measured, "fsdp, gloo", other), 1.02)
    sys.exit(0 if ok else 1)
