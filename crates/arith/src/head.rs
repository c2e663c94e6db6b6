//! The greedy choice, and the order of candidates (section 7).

/// Logits that [`leading`] looks at together.
const BLOCK: usize = 32;

/// Id of the largest logit; ties go to the lowest id. NaNs are never chosen unless all are. A
/// maximum of each block without a branch, then the first place from the best block on.
pub fn argmax(logits: &[f32]) -> u32 {
    const BLOCK: usize = 1024;
    assert!(!logits.is_empty());
    let (mut most, mut from) = (f32::NEG_INFINITY, 0);
    for (first, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        let highest = highest(block);
        if highest > most {
            (most, from) = (highest, first);
        }
    }
    // None is found where all are NaNs.
    logits[from..].iter().position(|&x| x == most).map_or(0, |id| from + id) as u32
}

/// The largest value of a block; NaNs are none.
fn highest(block: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = block.chunks_exact(LANES);
    for &x in chunks.remainder() {
        lanes[0] = if x > lanes[0] { x } else { lanes[0] };
    }
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Ids of the `count` best candidates, best first: value descending, then id ascending. The logits
/// are no NaNs; zeros of both signs are one value.
///
/// Keeps twice as many and drops the worse half when full, so that nearly every block of logits
/// costs one comparison, several logits at once.
pub fn leading(logits: &[f32], count: usize) -> Vec<u32> {
    let count = count.min(logits.len());
    match count {
        0 => return Vec::new(),
        1 => return vec![argmax(logits)],
        _ => {}
    }
    let room = (2 * count + 64).min(logits.len());
    let mut keys: Vec<u64> = Vec::with_capacity(room);
    let (mut floor, mut least) = (0, f32::NEG_INFINITY);
    for (first, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        if !block.iter().fold(false, |any, x| any | (*x >= least)) {
            continue;
        }
        for (id, &x) in (first..).zip(block) {
            let key = key(x, id);
            if key < floor {
                continue;
            }
            if keys.len() == room {
                keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
                keys.truncate(count);
                floor = keys[count - 1];
                least = logits[!(floor as u32) as usize];
                if key < floor {
                    continue;
                }
            }
            keys.push(key);
        }
    }
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.truncate(count);
    keys.into_iter().map(|key| !(key as u32)).collect()
}

/// Value and id as one integer: a greater key is a better candidate.
fn key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greedy_choice_is_that_of_one_logit_after_the_other() {
        let plain = |logits: &[f32]| {
            let mut best = 0;
            for (id, x) in logits.iter().enumerate() {
                if *x > logits[best] || logits[best].is_nan() && !x.is_nan() {
                    best = id;
                }
            }
            best as u32
        };
        let (nan, none) = (f32::NAN, f32::NEG_INFINITY);
        let mut rows = vec![vec![nan; 5], vec![nan, none], vec![-0.0, 0.0], vec![none, nan, none]];
        rows.push([vec![nan; 1030], vec![none; 40]].concat());
        for width in [1, 15, 16, 17, 1023, 1025, 5000] {
            let value = |i: usize| match i * 7 % 11 {
                3 => nan,
                i => (i * 37 % 90) as f32 - 45.0,
            };
            rows.push((0..width).map(value).collect());
            rows.push((0..width).map(|i| i as f32).collect());
        }
        for row in rows {
            assert_eq!(argmax(&row), plain(&row), "{} logits", row.len());
        }
    }

    #[test]
    fn candidates_are_ordered_by_value_and_then_by_id() {
        let logits: Vec<f32> = (0..500u32).map(|i| (i * 37 % 90) as f32 - 45.0).collect();
        let mut expected: Vec<u32> = (0..500).collect();
        expected.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        for count in [0, 1, 2, 20, 499, 500, 900] {
            assert_eq!(leading(&logits, count), expected[..count.min(500)], "{count}");
        }
        assert_eq!(leading(&[-0.0, 0.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(leading(&logits, 1), [argmax(&logits)]);
    }
}
