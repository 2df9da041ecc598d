"""Prove that a polynomial is nonnegative, exactly, and check the proof with code that shares nothing."""

from assay.science import check_certificate, prove_nonneg
from assay.science.sos_prover import NotNonnegative


def main() -> None:
    parrilo = prove_nonneg("2*x^4 + 5*y^4 - x^2*y^2 + 2*x^3*y")
    print(parrilo)
    print("independent check:", check_certificate(parrilo).ok)
    motzkin = prove_nonneg("x^4*y^2 + x^2*y^4 + 1 - 3*x^2*y^2")
    print("Motzkin's polynomial needs the multiplier", motzkin.multiplier)
    try:
        prove_nonneg("x^2 - 2*x + 1 - 1/1000000000")
    except NotNonnegative as refuted:
        print("negative at", [str(value) for value in refuted.point], "with value", refuted.value)


if __name__ == "__main__":
    main()
