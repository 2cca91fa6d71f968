"""A ledger of what papers claim about positional encodings, and what our records say to it.

`book/tables/claims.yaml` has one entry per claim: the paper's number and set-up, and conditions on
values of records that hold if the claim does. Verdicts are computed from the records, never typed.
No condition can be judged before its records exist. Imports no torch.
"""

from __future__ import annotations

from pe.claims.ledger import Claim, Condition, NotTestable, load
from pe.claims.values import Values
from pe.claims.verdict import Judged, Verdict, judge
