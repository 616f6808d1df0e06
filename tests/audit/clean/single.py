"""One model in one process per rank, its batches shuffled by a worker."""

import torch
from parts import Model, batches, loss_of

if __name__ == "__main__":
    torch.manual_seed(0)
    own = batches()
    pairs = [tuple(row[0] for row in next(own)) for _ in range(6)]
    loader = torch.utils.data.DataLoader(pairs, batch_size=2, num_workers=1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens, targets in loader:
        loss_of(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
