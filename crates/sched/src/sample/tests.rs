#![allow(clippy::unwrap_used, reason = "tests")]

use arith::candidates;
use proptest::prelude::*;

use super::*;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };

/// Logits of several tempers: smooth, tied, peaked, huge, of both zeros.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let size = prop_oneof![1..40usize, 200..3000usize];
    (size, 0..6u32, any::<u64>()).prop_map(|(size, temper, seed)| {
        let unit = |id: u64| mix(seed ^ mix(id)) as f32 / u64::MAX as f32 - 0.5;
        let value = |id: usize| {
            let x = unit(id as u64);
            match temper {
                0 => x * 20.0,
                1 => (x * 6.0).round(),
                2 => (x * 3.0).round() * 0.0,
                3 if id == size / 2 => 60.0,
                3 => x * 8.0,
                4 => x * 1e18,
                _ => x * 1e-3,
            }
        };
        (0..size).map(value).collect()
    })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature =
        prop_oneof![Just(0.0), Just(-1.0), Just(1e-9), Just(1e35), Just(1.0), 0.01..3.0f64];
    let top_k = prop_oneof![Just(0), Just(1), Just(u32::MAX), 1..600u32];
    let top_p = prop_oneof![Just(1.0), Just(0.0), Just(-1.0), Just(1.0 - 1e-12), 0.0..1.0f64];
    let min_p = prop_oneof![Just(0.0), Just(1.0), Just(2.0), Just(1e-300), 0.0..0.3f64];
    (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_fast_draw_is_the_plain_draw_where_tokens_are_masked(
        mut logits in logits(), sampling in sampling(), position in any::<u32>(), some in 2..9usize
    ) {
        let left = position as usize % logits.len();
        for (id, x) in logits.iter_mut().enumerate() {
            *x = if id == left || id % some == 0 { *x } else { f32::NEG_INFINITY };
        }
        let drawn = draw(&logits, &sampling, position);
        prop_assert_eq!(drawn, arith::sample::draw(&logits, &sampling, position));
        prop_assert!(logits[drawn as usize].is_finite(), "a masked token");
    }

    #[test]
    fn a_fast_draw_is_the_plain_draw(
        logits in logits(), sampling in sampling(), position in any::<u32>()
    ) {
        for position in (0..4).map(|n| position.wrapping_add(n)) {
            let plain = arith::sample::draw(&logits, &sampling, position);
            prop_assert_eq!(draw(&logits, &sampling, position), plain);
        }
    }

    #[test]
    fn a_draw_from_the_candidates_that_decide_is_that_from_the_row(
        logits in logits(), sampling in sampling(), position in any::<u32>()
    ) {
        let best = deciding(&sampling);
        if best > 0 && candidates::are_few(logits.len(), best) {
            let few = candidates::pack_rows(&logits, &[best]);
            for position in (0..4).map(|n| position.wrapping_add(n)) {
                let drawn = draw_among(candidates::read(&few), &sampling, position);
                prop_assert_eq!(drawn, arith::sample::draw(&logits, &sampling, position));
            }
        }
    }

    #[test]
    fn the_noise_bound_holds(seed in any::<u64>(), position in any::<u32>(), id in any::<u32>()) {
        let most = noise_most(noise_key(seed, position), id);
        let noise = noise(seed, position, id);
        prop_assert!(noise <= most && most < noise.max(0.0) + 1.5);
    }

    #[test]
    fn the_leading_candidates_are_those_of_a_full_sort(logits in logits(), count in 0..700usize) {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap());
        ids.truncate(count);
        let found: Vec<u32> = leading(&logits, count, 1.0).iter().map(|c| c.id).collect();
        prop_assert_eq!(found, ids);
    }

    #[test]
    fn log_probabilities_are_the_plain_ones(logits in logits()) {
        for (id, value) in top_logprobs(&logits, 5) {
            prop_assert_eq!(value.to_bits(), arith::sample::logprob(&logits, id).to_bits());
        }
    }
}

#[test]
fn both_ways_out_of_the_nucleus_are_taken() {
    let flat = vec![1.0; 5000];
    // Half of 5,000 equal candidates ends on a boundary that rounding could move.
    assert!(nucleus(&flat, 0, 1.0, 0.5).is_none());
    assert_eq!(nucleus(&flat, 0, 1.0, 0.5001).unwrap().len(), 2501);
    let steep: Vec<f32> = (0..5000).map(|id| -(id as f32)).collect();
    assert_eq!(nucleus(&steep, 0, 1.0, 0.9).unwrap().len(), 3);
}

#[test]
fn draws_are_as_frequent_as_their_probabilities() {
    let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
    let sampling = Sampling { temperature: 0.8, ..GREEDY };
    let draws = 40_000;
    let mut counts = [0u32; 5];
    for position in 0..draws {
        counts[draw(&logits, &sampling, position) as usize] += 1;
    }
    let weights = logits.map(|x| f64::exp(f64::from(x) / 0.8));
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(weights) {
        let (found, expected) = (f64::from(*count) / f64::from(draws), weight / total);
        // Five standard deviations of a frequency.
        let most = 5.0 * (expected * (1.0 - expected) / f64::from(draws)).sqrt();
        assert!((found - expected).abs() < most, "{found} for {expected}");
    }
}

#[test]
fn greedy_ties_go_to_the_lowest_id() {
    let mut logits = vec![0.0; 100];
    logits[40] = 3.0;
    logits[71] = 3.0;
    assert_eq!(draw(&logits, &GREEDY, 0), 40);
}

#[test]
fn equal_scores_go_to_the_lowest_id_in_whatever_order_they_come() {
    // So large that the noise is lost.
    let one = |id| Candidate { scaled: 1e300, id };
    assert_eq!(race([9, 4, 7].into_iter().map(one), 0, 0), 4);
}

#[test]
fn the_default_seed_depends_on_every_token_and_the_salt() {
    let seed = default_seed(&[1, 22, 333], 0);
    // SHA-256 of "1,22,333|0".
    assert_eq!(seed, 0x2cb84625b12c39b5);
    assert_ne!(seed, default_seed(&[1, 22, 334], 0));
    assert_ne!(seed, default_seed(&[12, 2, 333], 0));
    assert_ne!(seed, default_seed(&[1, 22, 333], 1));
}
