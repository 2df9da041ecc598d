"""Calibrate a classifier's confidences with SMART, beside plain temperature scaling.

A network trained on a third of scikit-learn's digits is too sure of itself. Half of the remaining rows
teach the calibrators, the other half judges them. With so few rows to learn from, plain temperature
scaling is hard to beat; `assay run smart` compares both on your own outputs, with intervals.
"""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from assay.trust import SMARTCalibrator, ece


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=300, random_state=0, stratify=y)
    network = MLPClassifier(hidden_layer_sizes=64, alpha=0.0, max_iter=1000, random_state=0).fit(X_train / 16, y_train)
    logits = np.log(network.predict_proba(X_rest / 16).clip(1e-30))
    fit, judge = np.arange(len(y_rest)) % 2 == 0, np.arange(len(y_rest)) % 2 == 1

    def nll(temperature: float) -> float:
        log_p = log_softmax(logits[fit] / temperature, axis=1)
        return -log_p[np.arange(fit.sum()), y_rest[fit]].mean()

    temperature = minimize_scalar(nll, bounds=(0.05, 20), method="bounded").x
    smart = SMARTCalibrator().fit(logits[fit], y_rest[fit])
    for name, probabilities in {
        "uncalibrated": softmax(logits[judge], axis=1),
        "temperature scaling": softmax(logits[judge] / temperature, axis=1),
        "SMART": smart.predict_proba(logits[judge]),
    }.items():
        right = (probabilities.argmax(axis=1) == y_rest[judge]).mean()
        print(f"{name:20} accuracy {right:.3f}   calibration error {100 * ece(probabilities, y_rest[judge]):.2f} %")


if __name__ == "__main__":
    main()
