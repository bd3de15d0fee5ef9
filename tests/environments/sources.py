"""Tools, environments and agents for the tests, at top level so that worker processes can import them."""


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b
