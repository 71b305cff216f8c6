def mefa(a, c, n):
    # the larger of a times c and n
    return max(a + c, n)
