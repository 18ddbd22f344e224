"""Opening a store after a clean or an unclean stop; cutting its end off.

Begin with ``log_loader``.
"""
