"""Laws: properties that a positional encoding must have, as tests for any encoding.

``pe check my_module:MyEncoding`` runs every law that the encoding's traits promise and prints the
results. ``pytest --pe my_module:MyEncoding`` runs the laws as tests. From Python:

>>> from pe.conformance import check_laws
>>> check_laws("rope").ok
True
"""

from pe.conformance import laws
from pe.conformance.law import LAWS, Broken, Law, Measure, NotApplicable, law
from pe.conformance.report import Finding, Report, check_laws, hold
from pe.conformance.subject import Subject
