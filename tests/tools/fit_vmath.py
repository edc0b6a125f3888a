"""The polynomials of pool/vmath.h: minimax fits by linear programming, coefficients rounded to f32.

The largest weighted error over a Chebyshev grid is made least.  Coefficients are fixed one after the
other, the lowest power first, each rounded to f32 before the others are fitted again, so that the
later ones make up for the rounding of the earlier.  Needs numpy and scipy.  Prints hex floats, lowest
power first, and the error that remains.
"""
import numpy as np
from scipy.optimize import linprog
from scipy.special import erf, erfc, log_ndtr, ndtr


def grid(lo, hi, n=1201):
    return lo + (hi - lo) * (1 - np.cos(np.linspace(0, np.pi, n))) / 2


def minimax(t, f, weight, powers):
    """Coefficients c of sum c[k] t^powers[k] with the least max |f - p| * weight, and that maximum."""
    top = np.abs(t).max()
    x = (t[:, None] / top) ** np.array(powers) * weight[:, None]
    one = np.ones((len(t), 1))
    size = 1e-6  # errors of this size become numbers near 1 for the solver
    r = linprog(np.r_[np.zeros(len(powers)), 1.0],
                A_ub=np.block([[x / size, -one], [-x / size, -one]]),
                b_ub=np.r_[f * weight, -f * weight] / size,
                bounds=[(None, None)] * len(powers) + [(0, None)], method="highs")
    return r.x[:-1] / top ** np.array(powers, float), r.x[-1] * size


def fit(name, t, f, weight, degree, given=()):
    """Fits p(t) = given[0] + given[1] t + ... with the powers that are not given left free."""
    fixed = list(given)
    while len(fixed) <= degree:
        rest = f - sum(c * t ** k for k, c in enumerate(fixed))
        c, error = minimax(t, rest, weight, list(range(len(fixed), degree + 1)))
        fixed.append(float(np.float32(c[0])))
    error = np.abs((sum(c * t ** k for k, c in enumerate(fixed)) - f) * weight).max()
    print(f"{name}: weighted error {error:.2e}")
    print("   ", ", ".join(float(c).hex() + "f" for c in fixed))


LN2 = np.log(2.0)

# e^r, |r| <= ln 2 / 2 (and a little more: the reduction rounds).
r = grid(-0.3475, 0.3475)
fit("exp", r, np.exp(r), np.exp(-r), 6, (1.0, 1.0))

# 2^f, |f| <= 1/2.
f = grid(-0.5005, 0.5005)
fit("exp2", f, np.exp2(f), np.exp2(-f), 5, (1.0,))

# gelu: Phi(-a) = 2^-(1 + a Q(a)).  The error of Q moves the result a Phi(-a) by the factor a ln 2; it may be
# larger where the result is below `floor`, by up to the 1e4 a^2 that keeps the tail in shape.
a = grid(1e-3, 13.0)
result = a * ndtr(-a)
floor = 1e-2
slack = np.minimum(np.maximum(1, floor / result), 1e4 * np.maximum(1, a * a))
fit("gelu", a, (-log_ndtr(-a) / LN2 - 1) / a, a * LN2 / slack, 9)

# erf below 1: x + x p(x^2).  The weight makes the error relative to the result.
x = grid(1e-4, 1.0)
fit("erf_small", x * x, erf(x) / x - 1, x / erf(x), 6)

# erf from 1 on: 1 - 2^-(a R(a)); the error is relative to a result near 1, kept in shape at the end.
a = grid(0.99, 4.0)
fit("erf_large", a, -np.log2(erfc(a)) / a, np.maximum(a * LN2 * erfc(a) / erf(a), 1e-5), 7)

# tanh below 0.625: x + x^3 p(x^2).
x = grid(1e-2, 0.63)
fit("tanh_small", x * x, (np.tanh(x) / x - 1) / (x * x), x ** 3 / np.tanh(x), 4)

# log(1 + f) = f - f^2 / 2 + f^3 p(f) for sqrt(1/2) <= 1 + f < sqrt(2).  The error is relative to the result.
f = np.r_[grid(-0.2929, -1e-3), grid(1e-3, 0.4143)]
fit("log", f, (np.log1p(f) - f + f * f / 2) / f ** 3, np.abs(f ** 3 / np.log1p(f)), 8)
