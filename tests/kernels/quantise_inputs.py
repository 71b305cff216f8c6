"""Values that quantisers get wrong, in matrices [rows, 128]: random, boundary, zero, largest, smallest, not finite."""

import torch

WIDTH = 128
INFINITY = torch.tensor(torch.inf)


def neighbours(values):
    """Each fp32 value, the one below and the one above."""
    return torch.cat((values, torch.nextafter(values, -INFINITY), torch.nextafter(values, INFINITY)))


def midpoints(representable):
    """Halfway points of a format's neighbouring values, where rounding must choose, and what lies beside them."""
    return neighbours((representable[1:] + representable[:-1]) / 2)


def rows_of(values, first):
    """Rows that hold the values and their negatives; each block of 16 begins with `first`, which sets its scale."""
    values = torch.cat((values, -values))
    values = torch.nn.functional.pad(values, (0, -len(values) % 15)).view(-1, 15)
    blocks = torch.cat((torch.full((len(values), 1), first), values), 1).flatten()
    return torch.nn.functional.pad(blocks, (0, -len(blocks) % WIDTH)).view(-1, WIDTH)


def e4m3_values():
    return torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def e2m1_values():
    return torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def cases():
    """Name -> fp32 matrix. Every value but those of `fine` is also given in bf16 by the tests that want it."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(64, WIDTH, generator=generator)
    spread = normal * torch.exp2(torch.randint(-40, 40, (64, WIDTH), generator=generator).float())
    blocks = torch.exp2(torch.randint(-30, 30, (64, WIDTH // 16, 1), generator=generator).float())
    zeros = torch.zeros(4, WIDTH)
    zeros[1] = -0.0
    zeros[2, ::3] = -0.0
    zeros[3, 40] = 1.0  # one block of a zero row is not
    largest = torch.zeros(4, WIDTH)
    largest[0] = torch.finfo(torch.float32).max
    largest[1, ::7] = torch.finfo(torch.bfloat16).max
    largest[2] = -torch.finfo(torch.float32).max * torch.rand(WIDTH, generator=generator)
    largest[3, :16] = torch.finfo(torch.float32).max  # beside blocks of zeros
    smallest = normal[:8] * 2.0 ** -torch.tensor([100.0, 115.0, 119.0, 120.0, 124.0, 126.0, 130.0, 140.0])[:, None]
    unknown = normal[:8].clone()
    unknown[0, 5] = torch.nan
    unknown[1, 64:96] = torch.nan
    unknown[2] = torch.nan
    unknown[3, 7] = -torch.nan
    infinite = normal[:4].clone()
    infinite[0, 3] = torch.inf
    infinite[1, 70] = -torch.inf
    infinite[2, 0], infinite[2, 1] = torch.inf, torch.nan
    return {
        "random": normal,
        "spread": spread,
        "blocks": (normal.unflatten(1, (-1, 16)) * blocks).flatten(1),
        "e4m3 boundaries": rows_of(midpoints(e4m3_values()), 448.0),
        "e2m1 boundaries": rows_of(midpoints(e2m1_values()), 6.0),
        "zero": zeros,
        "largest": largest,
        "smallest": smallest,
        "NaN": unknown,
        "infinite": infinite,
    }
