//! The greedy choice (section 7).

/// Id of the largest logit; ties go to the lowest id. NaNs are never chosen unless all are.
pub fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty());
    let mut best = 0;
    for (id, x) in logits.iter().enumerate() {
        if *x > logits[best] || logits[best].is_nan() && !x.is_nan() {
            best = id;
        }
    }
    best as u32
}
