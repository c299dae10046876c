"""Imported by the server that workers are forked from: what the first answers cost is paid once, for all of them.

A fresh process takes half a second of CPU for its first answers (parser tables, SymPy's own caches). Where workers are
replaced, and the machine is busy, that alone could use up the limit of an easy answer.
"""

from sgrpo_lightning.rewards.math_grading import grade_math

for _answer, _gold in (
    (r"\frac{1}{2}", "0.5"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    ("(1, 2]", "(1,2]"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    (r"\sin(3) \log 2", r"\pi"),
):
    grade_math(rf"\boxed{{{_answer}}}", answer=_gold)
