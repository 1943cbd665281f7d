//! The layer norm of encoders: shifts the mean of a row to 0 and scales its variance to 1. There is one
//! version for all processors, because it is only a hundredth of an encoder's work.

/// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`; all have the same length.
pub(super) fn scalar(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let mean = (x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64) as f32;
    let squares = x.iter().map(|v| f64::from(v - mean).powi(2)).sum::<f64>();
    let scale = 1.0 / ((squares / x.len() as f64) as f32 + eps).sqrt();
    for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = (x - mean) * scale * weight + bias;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_a_row() {
        let mut out = [0.0; 4];
        super::scalar(&[1.0, 2.0, 3.0, 6.0], &[1.0, 1.0, 2.0, 1.0], &[0.0, 0.5, 0.0, 0.0], 0.0, &mut out);
        let root = 3.5f32.sqrt();
        for (found, expect) in out.iter().zip([-2.0 / root, -1.0 / root + 0.5, 0.0, 3.0 / root]) {
            assert!((found - expect).abs() < 1e-6, "{out:?}");
        }
    }
}
