"""A ledger of what papers claim about positional encodings, compared with our records.

`book/tables/claims.yaml` has one entry per claim: the paper's number and set-up, and conditions on
values of records, which are met if the claim holds. Verdicts are computed from the records. A
condition is judged only when its records exist.
"""

from __future__ import annotations

from pe.claims.ledger import Claim, Condition, NotTestable, load
from pe.claims.values import Values
from pe.claims.verdict import Judged, Verdict, judge
