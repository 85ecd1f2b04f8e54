// GELU.

// The tanh approximation, x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), is x sigmoid(2u): without
// the cancellation of 1 + tanh(u) for negative x. T is the type of the result.
template <class T> DEVICE float gelu_sigmoid(float x) {
    const float twice_sqrt_2_over_pi = 1.5957691216057308f;
    return sigmoid_for<T>(twice_sqrt_2_over_pi * x * (1.0f + 0.044715f * x * x));
}

template <class T> DEVICE float gelu_derivative(float x) {
    const float twice_sqrt_2_over_pi = 1.5957691216057308f;
    float s = gelu_sigmoid<T>(x);
    return s + x * s * (1.0f - s) * twice_sqrt_2_over_pi * (1.0f + 3.0f * 0.044715f * x * x);
}
