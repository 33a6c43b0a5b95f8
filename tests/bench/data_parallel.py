"""Step of a GPT of 3.3 M parameters, 16 rows: ddp and data_parallel against PyTorch's DDP, single against a process"""
# needs data: text
import pathlib
import sys
import sysconfig

import gpt_steps
import harness

PEER, COMPILED, BOTH = "torch DDP", "torch.compile, one rank", "two singles at once"
CONTESTANTS = {"ddp, gloo": ("ddp", ["backend=gloo"], 2), "ddp, mpi": ("ddp", ["backend=mpi"], 2),
               "data_parallel": ("data_parallel", [], None)}
ONE_RANK = {"ddp": ("ddp", [], 1), "data_parallel": ("data_parallel", ['strategy.devices=["cores:0"]'], None)}

if __name__ == "__main__":
    options = gpt_steps.arguments(__doc__)
    contestants = {gpt_steps.ALONE: gpt_steps.peer(gpt_steps.ALONE, options), PEER: gpt_steps.peer(PEER, options)}
    for name, (strategy, overrides, ranks) in CONTESTANTS.items():
        contestants[name] = gpt_steps.convoy(strategy, options, *overrides, ranks=ranks)
    for name, (strategy, overrides, ranks) in ONE_RANK.items():
        contestants[f"{name}, one rank"] = gpt_steps.convoy(strategy, options, *overrides, ranks=ranks)
    contestants["single"] = gpt_steps.convoy("single", options)
    if (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        contestants[COMPILED] = gpt_steps.peer(COMPILED, options)
    else:
        harness.say(f"without {COMPILED}: it builds C++ and needs Python.h (Debian: python3-dev)")
    contestants[BOTH] = gpt_steps.side_by_side(options)
    measured = harness.interleave(options.rounds, contestants, reference=PEER, expected=gpt_steps.expected(PEER))
    gpt_steps.report(measured, PEER)
    worth = gpt_steps.two_cores(measured, "ddp, one rank", BOTH)
    ok = True
    for name, (strategy, _, _) in CONTESTANTS.items():
        gate, aim = (0.87, 0.78) if strategy == "ddp" else (1.0, None)
        ok &= harness.check(f"{name} against {PEER}", harness.median_ratio(measured, name, PEER), gate, aim=aim)
        speed_up = harness.median_ratio(measured, f"{strategy}, one rank", name)
        harness.say(f"       {name}: one rank's step ÷ that of two: {speed_up:.3f}")
        ok &= harness.check(f"{name}: the same, of what two cores give here", speed_up / worth, 1.88, at_most=False,
                              aim=1.95)
    ok &= harness.check(f"single against {gpt_steps.ALONE}", harness.median_ratio(measured, "single", gpt_steps.ALONE),
                          0.85, aim=0.75)
    if COMPILED in contestants:
        ok &= harness.check(f"single against {COMPILED}", harness.median_ratio(measured, "single", COMPILED), 1.0,
                              aim=0.9)
    harness.say(f"{PEER}: one rank's step ÷ that of two: {harness.median_ratio(measured, gpt_steps.ALONE, PEER):.3f}")
    sys.exit(0 if ok else 1)
