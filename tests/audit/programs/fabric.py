"""Fabric with Lightning's own demonstration transformer, as its manual has it."""

import torch
from lightning.fabric import Fabric
from lightning.pytorch.demos import Transformer

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)
model = Transformer(vocab_size=64, nlayers=1, ninp=32, nhid=32)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
tokens = torch.utils.data.TensorDataset(torch.randint(64, (64, 17)))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(tokens, batch_size=4))
for (batch,) in loader:
    output = model(batch[:, :-1], batch[:, 1:])
    loss = torch.nn.functional.nll_loss(output, batch[:, 1:].reshape(-1))
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, clip_val=0.25)
    optimizer.step()
    optimizer.zero_grad()
