"""Writes what `convoy verify CONFIG --against FOLDER` compares with a model of PyTorch.

    from dump_reference import dump_reference
    batch = {"tokens": ids[:, :-1].contiguous(), "target": ids[:, 1:].contiguous()}
    dump_reference(model, batch, lambda: F.cross_entropy(model(batch["tokens"]).logits.flatten(0, 1),
                                                         batch["target"].flatten()), "reference")

`batch` has the fields of convoy's data set (docs/data.md). The loss is the mean over rows or tokens. Dropout is off,
and batch norm uses the batch.
"""
import os
import torch
from safetensors.torch import save_file


def dump_reference(model, batch, loss, folder):
    os.makedirs(folder, exist_ok=True)
    plain = lambda tensor: tensor.detach().cpu().clone().contiguous()
    save_file({n: plain(t) for n, t in model.state_dict().items()}, f"{folder}/model.safetensors", {"format": "pt"})
    if hasattr(model, "config"):
        model.config.save_pretrained(folder)
    for module in model.modules():
        module.train(isinstance(module, torch.nn.modules.batchnorm._BatchNorm))
    kept = {f"batch/{name}": plain(tensor) for name, tensor in batch.items()}
    def keep(name, inputs, output):
        if inputs and isinstance(output, torch.Tensor) and f"output/{name}" not in kept:
            kept.update({f"input/{name}": plain(inputs[0]), f"output/{name}": plain(output)})
    hooks = [module.register_forward_hook(lambda _, inputs, output, name=name: keep(name, inputs, output))
             for name, module in model.named_modules() if module._parameters]
    model.zero_grad()
    value = loss()
    value.backward()
    [hook.remove() for hook in hooks]
    kept["loss"] = plain(value)
    kept.update({f"gradient/{n}": plain(p.grad) for n, p in model.named_parameters() if p.grad is not None})
    save_file(kept, f"{folder}/reference.safetensors")
