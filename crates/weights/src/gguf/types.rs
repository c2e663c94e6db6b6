//! Tensor types: the ones read here, and the names of the others for the refusal.

use arith::format::Format;

/// The formats that are read, as an error message lists them.
pub const READ: &str = "F32, F16, BF16, Q4_0, Q4_1 or Q8_0";

/// ggml's number of a format.
pub fn number(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q8_0 => 8,
        Format::Bf16 => 30,
    }
}

/// The format that a ggml type number stands for, where it is read.
pub fn format(number: u32) -> Option<Format> {
    Some(match number {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        8 => Format::Q8_0,
        30 => Format::Bf16,
        _ => return None,
    })
}

/// The format of a name as [`Format::name`] gives it.
pub fn by_name(name: &str) -> Option<Format> {
    (0..=30).filter_map(format).find(|format| format.name() == name)
}

/// The name of any ggml type number.
pub fn name(number: u32) -> String {
    let known = match number {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
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
            Some(format) => format.name(),
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
                    assert_eq!((number(f), name(n).as_str()), (n, f.name()));
                    assert_eq!(by_name(f.name()), Some(f));
                }
                None => assert!(!name(n).is_empty()),
            }
        }
        assert_eq!(name(12), "Q4_K");
        assert_eq!(name(23), "IQ4_XS");
        assert_eq!(name(99), "the unknown type 99");
    }
}
