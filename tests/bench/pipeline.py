"""Step of a GPT of 3.3 M parameters by two stages, 8 micro-batches of 2: 1F1B against PyTorch's, and its formula"""
# needs data: text
import sys

import gpt_steps
import harness

PEER, MICRO, STAGES = "torch 1F1B", 8, 2
SINGLE, BOTH = "single, 8 micro-batches", "two of those at once"
FORMULA = MICRO / (MICRO + STAGES - 1) * STAGES  # speed-up over one rank; 1.78

if __name__ == "__main__":
    options = gpt_steps.arguments(__doc__)
    overrides = [f"strategy.micro_batches={MICRO}", "strategy.schedule=1f1b"]
    measured = harness.interleave(options.rounds, {
        gpt_steps.ALONE: gpt_steps.peer(gpt_steps.ALONE, options),
        PEER: gpt_steps.peer(PEER, options),
        "pipeline, gloo": gpt_steps.convoy("pipeline", options, "backend=gloo", *overrides, ranks=STAGES),
        "pipeline, mpi": gpt_steps.convoy("pipeline", options, "backend=mpi", *overrides, ranks=STAGES),
        SINGLE: gpt_steps.convoy("single", options, f"strategy.micro_batches={MICRO}"),
        BOTH: gpt_steps.side_by_side(options, f"strategy.micro_batches={MICRO}"),
    }, reference=PEER, expected=gpt_steps.expected(PEER))
    gpt_steps.report(measured, PEER)
    harness.say(f"the formula: m/(m + p − 1) · p = {FORMULA:.3f} times as quick as one rank")
    worth = gpt_steps.two_cores(measured, SINGLE, BOTH)
    ok = True
    for name in ("pipeline, gloo", "pipeline, mpi"):
        ok &= harness.check(f"{name} against {PEER}", harness.median_ratio(measured, name, PEER), 0.88, aim=0.82)
        speed_up = harness.median_ratio(measured, SINGLE, name)
        harness.say(f"       {name}: {speed_up:.3f} times as quick as single, {speed_up / FORMULA:.3f} of the formula")
        ok &= harness.check(f"{name}: the same, of what two cores give here", speed_up / FORMULA / worth, 0.93,
                              at_most=False, aim=0.97)
    sys.exit(0 if ok else 1)
