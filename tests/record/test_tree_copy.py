"""A copy of a state does not follow what training goes on to change."""

from collections import OrderedDict

import numpy as np
import torch

from proa.record.tree_copy import copy_tree


def test_tensors_and_arrays_are_copies_at_any_depth():
    parameter = torch.nn.Parameter(torch.ones(2))
    tree = {
        "moments": {"w": torch.zeros(2)}, "rows": [np.zeros(2), (torch.zeros(1), "text")], "parameter": parameter,
        "ordered": OrderedDict(b=torch.zeros(1)),
    }  # fmt: skip
    copy = copy_tree(tree)
    tree["moments"]["w"].add_(1)
    tree["rows"][0] += 1
    tree["rows"][1][0].add_(1)
    tree["ordered"]["b"].add_(1)
    tree["moments"]["another"] = 1
    with torch.no_grad():
        parameter.add_(1)
    assert copy["moments"].keys() == {"w"}
    assert copy["moments"]["w"].tolist() == copy["rows"][0].tolist() == [0, 0]
    assert copy["rows"][1][0].item() == copy["ordered"]["b"].item() == 0
    assert copy["parameter"].tolist() == [1, 1]
    assert not copy["parameter"].requires_grad


def test_plain_values_and_the_kinds_of_containers_are_kept():
    tree = {1: (None, True, 2.5, "text", b"bytes"), "list": [np.float64(3.5), np.int64(4)]}
    copy = copy_tree(tree)
    assert copy == tree
    assert type(copy[1]) is tuple
    assert [type(one) for one in copy["list"]] == [np.float64, np.int64]
