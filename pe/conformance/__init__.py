"""Laws that a positional encoding keeps, for any encoding that anybody writes.

``pe check my_module:MyEncoding`` runs all that its traits promise and prints what came out;
``pytest --pe my_module:MyEncoding`` runs them as tests. From Python:

>>> from pe.conformance import check_laws
>>> check_laws("rope").ok
True
"""

from pe.conformance import laws
from pe.conformance.law import LAWS, Broken, Law, Measure, NotApplicable, law
from pe.conformance.report import Finding, Report, check_laws, hold
from pe.conformance.subject import Subject
