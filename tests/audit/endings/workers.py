"""Data workers, forked or spawned by the first argument, that use torch themselves."""

import sys

import torch
from parts import Model, batches, loss_of
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = next(batches(number))
        return tokens[0], targets[0]


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(
        Drawn(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context=sys.argv[1]
    )
    for tokens, targets in loader:
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex(), torch.rand(1).item().hex())


if __name__ == "__main__":
    main()
