"""Sources of tasks that the tests name by dotted path."""

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]


def make_rows():
    return ROWS
