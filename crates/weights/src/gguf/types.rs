//! Tensor types: the ones read here, and the names of the others for the refusal.

use arith::format::Format;

/// The formats that are read, as an error message lists them.
pub const READ: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K";

/// The highest number of a format that is read.
const NUMBER_MAX: u32 = 30;

/// ggml's number of a format; MLX's have none.
pub fn number(format: Format) -> Option<u32> {
    (0..=NUMBER_MAX).find(|&number| self::format(number) == Some(format))
}

/// The format that a ggml type number stands for, where it is read.
pub fn format(number: u32) -> Option<Format> {
    Some(match number {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        12 => Format::Q4K,
        13 => Format::Q5K,
        14 => Format::Q6K,
        30 => Format::Bf16,
        _ => return None,
    })
}

/// The name of any ggml type number.
pub fn name(number: u32) -> String {
    let known = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        4 | 5 | 31..=33 | 36..=38 => return format!("the removed type {number}"),
        _ => match format(number) {
            Some(format) => return format.to_string(),
            None => return format!("the unknown type {number}"),
        },
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_back_to_its_format_and_others_have_names() {
        for n in 0..64 {
            match format(n) {
                Some(f) => {
                    assert_eq!((number(f), name(n)), (Some(n), f.to_string()));
                }
                None => assert!(!name(n).is_empty()),
            }
        }
        assert_eq!(name(12), "Q4_K");
        assert_eq!(name(23), "IQ4_XS");
        assert_eq!(name(99), "the unknown type 99");
    }
}
