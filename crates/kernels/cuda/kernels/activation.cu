// GELU and SwiGLU.
//
// Every elementwise kernel takes `len` elements, of which the first `vectorised` are processed 8 at a time.

#define THREADS 256

template <class X, class Y> DEVICE void gelu(const X* x, Y* y, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        load(x + at, values);
        for (int i = 0; i < N; i++) values[i] *= gelu_sigmoid<Y>(values[i]);
        store(y + at, values);
    })
}

// dy *= derivative at x.
template <class X, class D> DEVICE void gelu_backward(const X* x, D* dy, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float values[N];
        float grads[N];
        load(x + at, values);
        load(dy + at, grads);
        for (int i = 0; i < N; i++) grads[i] *= gelu_derivative<D>(values[i]);
        store(dy + at, grads);
    })
}

// The rows of gelu_backward, for column sums.
template <class X, class D, int N> struct GeluRows {
    struct Loaded {
        Packed<X, N> x;
        Packed<D, N> dy;
    };

    const X* x;
    D* dy;

    __device__ Loaded load(u64 at) {
        return {load_packed<N>(x + at), load_packed<N>((const D*)dy + at)};
    }

    __device__ void values(u64 at, const Loaded& loaded, float (&grads)[N]) {
        float values[N];
        unpack(loaded.x, values);
        unpack(loaded.dy, grads);
#pragma unroll
        for (int i = 0; i < N; i++) grads[i] *= gelu_derivative<D>(values[i]);
        store(dy + at, grads);
    }
};

#define COLUMN_THREADS 128

#define GELU(X, Y)                                                                                     \
    KERNEL __launch_bounds__(THREADS) gelu_##X##_##Y(const X* x, Y* y, u64 len, u64 vectorised) {      \
        gelu(x, y, len, vectorised);                                                                   \
    }                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        gelu_backward_##X##_##Y(const X* x, Y* dy, u64 len, u64 vectorised) {                          \
        gelu_backward(x, dy, len, vectorised);                                                         \
    }                                                                                                  \
    KERNEL __launch_bounds__(COLUMN_THREADS)                                                           \
        gelu_backward_bias_##X##_##Y(const X* x, Y* dy, float* partials, u64 rows, u64 columns,        \
                                     u32 is_vectorised) {                                              \
        if (is_vectorised)                                                                             \
            sum_columns<8>(rows, columns, partials, GeluRows<X, Y, 8>{x, dy});                         \
        else                                                                                           \
            sum_columns<1>(rows, columns, partials, GeluRows<X, Y, 1>{x, dy});                         \
    }

GELU(f32, f32)
GELU(f32, bf16)
GELU(bf16, f32)
GELU(bf16, bf16)

// y = silu(gate) up. A row of x has `dim` gate elements, then `dim` up elements. Vectors must not cross rows:
// `vectorised` is all elements or none.
template <class X, class Y> DEVICE void swiglu(const X* x, Y* y, u32 dim, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float gate[N];
        float up[N];
        u64 row_start = divide(at, dim) * dim;
        load(x + row_start + at, gate);
        load(x + row_start + at + dim, up);
        for (int i = 0; i < N; i++) up[i] *= gate[i] * sigmoid_for<Y>(gate[i]);
        store(y + at, up);
    })
}

template <class X, class D, class G>
DEVICE void swiglu_backward(const X* x, const D* dy, G* dx, u32 dim, u64 len, u64 vectorised) {
    FOR_ELEMENTS(len, vectorised, {
        float gate[N];
        float up[N];
        float grad[N];
        u64 gate_at = divide(at, dim) * dim + at;
        load(x + gate_at, gate);
        load(x + gate_at + dim, up);
        load(dy + at, grad);
        for (int i = 0; i < N; i++) {
            float s = sigmoid_for<G>(gate[i]);
            // The derivative of silu is s + gate s (1 - s).
            float dgate = grad[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
            up[i] = grad[i] * gate[i] * s;
            gate[i] = dgate;
        }
        store(dx + gate_at, gate);
        store(dx + gate_at + dim, up);
    })
}

#define SWIGLU(X, Y)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                  \
        swiglu_##X##_##Y(const X* x, Y* y, u32 dim, u64 len, u64 vectorised) {                         \
        swiglu(x, y, dim, len, vectorised);                                                            \
    }

SWIGLU(f32, f32)
SWIGLU(f32, bf16)
SWIGLU(bf16, f32)
SWIGLU(bf16, bf16)

#define SWIGLU_BACKWARD(X, D, G)                                                                       \
    KERNEL __launch_bounds__(THREADS) swiglu_backward_##X##_##D##_##G(const X* x, const D* dy, G* dx,  \
                                                                      u32 dim, u64 len,                \
                                                                      u64 vectorised) {                \
        swiglu_backward(x, dy, dx, dim, len, vectorised);                                              \
    }

SWIGLU_BACKWARD(f32, f32, f32)
SWIGLU_BACKWARD(f32, f32, bf16)
SWIGLU_BACKWARD(f32, bf16, f32)
SWIGLU_BACKWARD(f32, bf16, bf16)
SWIGLU_BACKWARD(bf16, f32, f32)
SWIGLU_BACKWARD(bf16, f32, bf16)
SWIGLU_BACKWARD(bf16, bf16, f32)
SWIGLU_BACKWARD(bf16, bf16, bf16)
