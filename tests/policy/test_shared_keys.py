"""Keys that are copies of tokens: the gradients of all copies are added up, whatever the segments."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.policy.shared_keys import gather_keys, make_shared_keys

GROUPS = st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(1, 4), max_size=9)), min_size=1, max_size=4)


def lay_out(groups):
    """Prompts, each with its completions; a completion attends to its prompt and to itself."""
    queries, keys, places, place = [], [], [], 0
    for prompt_length, completions in groups:
        prompt = list(range(place, place + prompt_length))
        queries.append(prompt_length)
        keys.append(prompt)
        place += prompt_length
        for length in completions:
            own = list(range(place, place + length))
            queries.append(length)
            keys.append(prompt + own)
            place += length
    places = [place for of_a_segment in keys for place in of_a_segment]
    return queries, list(map(len, keys)), places


@given(GROUPS, st.integers(0, 3))
def test_gradients_are_those_of_indexing(groups, unused):
    queries, keys, places = lay_out(groups)
    shared = make_shared_keys(queries, keys, torch.tensor(places + [0] * unused))
    tokens = torch.randn(sum(queries), 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.randn(len(places), 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    gathered = gather_keys(ours, shared)
    assert torch.equal(gathered[: len(places)], tokens[places])
    # Of keys in no segment an attention kernel leaves whatever was in memory.
    garbage = torch.full((unused, 2, 3), torch.nan, dtype=torch.float64)
    gathered.backward(torch.cat((weights, garbage)))
    (theirs[places] * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-14, atol=1e-14)


def test_copies_of_bfloat16_are_added_up_in_float32():
    shared = make_shared_keys(
        [1, *[1] * 8], [1, *[2] * 8], torch.tensor([0, *(k for n in range(1, 9) for k in (0, n))])
    )
    tokens = torch.zeros(9, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.full((17, 1, 1), 0.00390625, dtype=torch.bfloat16)  # 2**-8: half of the last bit of 1
    gradient[0] = 1.0
    gather_keys(tokens, shared).backward(gradient)
    assert float(tokens.grad[0]) == 1.03125  # one after the other they would all be rounded away


def test_tables_have_few_sizes():
    sizes = {
        tuple(make_shared_keys(*lay_out_tensor([(prompt, [2] * count)])).others_PR.shape)
        for prompt in range(1, 8) for count in range(1, 9)
    }  # fmt: skip
    assert all(size & (size - 1) == 0 for shape in sizes for size in shape)
    assert len(sizes) == 3 * 4


def lay_out_tensor(groups):
    queries, keys, places = lay_out(groups)
    return queries, keys, torch.tensor(places)
