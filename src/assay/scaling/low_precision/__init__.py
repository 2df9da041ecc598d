"""Scaling laws for precision: quantised SGD on sketched linear regression, and a planner of bits (arXiv 2602.19241)."""

from assay._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "law": ["PrecisionLaw"],
        "planning": ["plan_precision"],
        "quantisers": ["QuantScheme", "bits_to_eps", "eps_to_bits", "stochastic_round"],
        "recursion": ["risk_grid", "risk_recursion"],
        "simulation": ["sketched_sgd"],
        "spectra": ["spectrum_from_data", "spectrum_powerlaw", "target_powerlaw"],
    },
)
