//! The paged keys and values of one layer.
//!
//! A page holds 64 keys of every kv head: keys d-major (`[head][dim][64]`, so that a vector holds
//! eight keys), values by key (`[head][64][dim]`).

use arith::attention::{Heads, KvDtype};
use arith::base::TILE_KEYS;
use backend::{BackendError, RowAt, RowMap};

use crate::Level;
use crate::memory;
use crate::pool::Pool;
use crate::rows::{Cells, Rows};

/// Values below which a write stays with the caller.
const VALUES_MIN: usize = 1 << 13;

/// Keys and values in the cache's dtype.
pub(crate) enum Store {
    F16 { k: Vec<u16>, v: Vec<u16> },
    F32 { k: Vec<f32>, v: Vec<f32> },
}

/// The cache of one layer.
pub struct Kv {
    pub(crate) heads: Heads,
    pub(crate) pages: usize,
    pub(crate) store: Store,
}

impl Kv {
    pub(crate) fn new(
        device: &str,
        dtype: KvDtype,
        pages: usize,
        heads: Heads,
    ) -> Result<Self, BackendError> {
        let Heads { query, kv, dim } = heads;
        if kv == 0 || dim == 0 || query == 0 || !query.is_multiple_of(kv) {
            return Err(BackendError::Shape {
                what: "attention heads".into(),
                expected: "query heads a multiple of kv heads, none of them 0".into(),
                found: format!("{query} query heads, {kv} kv heads of {dim}"),
            });
        }
        let values =
            [pages, kv, dim, TILE_KEYS].iter().fold(1_u128, |n, &x| n.saturating_mul(x as u128));
        let what = format!("kv cache of {pages} pages");
        memory::check(device, &what, values.saturating_mul(2 * dtype.bytes() as u128))?;
        let values = pages * kv * dim * TILE_KEYS;
        let store = match dtype {
            KvDtype::F16 => Store::F16 { k: vec![0; values], v: vec![0; values] },
            KvDtype::F32 => Store::F32 { k: vec![0.0; values], v: vec![0.0; values] },
        };
        Ok(Self { heads, pages, store })
    }

    /// Copies page `from` to page `to`.
    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (self.start(from, 0), self.start(to, 0));
        let part = from..from + self.heads.kv * self.head_values();
        match &mut self.store {
            Store::F16 { k, v } => [k, v].map(|x| x.copy_within(part.clone(), to)),
            Store::F32 { k, v } => [k, v].map(|x| x.copy_within(part.clone(), to)),
        };
    }

    /// Values of one kv head in one page, of keys or of values.
    pub(crate) fn head_values(&self) -> usize {
        self.heads.dim * TILE_KEYS
    }

    /// Where kv head `head` of page `page` starts.
    pub(crate) fn start(&self, page: u32, head: usize) -> usize {
        let page = page as usize;
        assert!(page < self.pages, "page {page} of {}", self.pages);
        (page * self.heads.kv + head) * self.head_values()
    }
}

/// Stores the keys and values of every row of the round, kv heads spread over the pool.
pub(crate) fn kv_write(pool: &Pool, level: Level, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
    let Heads { kv: kv_heads, dim, .. } = kv.heads;
    let rows = map.rows.len();
    assert!(k.width == kv_heads * dim && v.width == k.width, "keys {k:?}, values {v:?}");
    assert!(rows <= k.rows_max && rows <= v.rows_max, "{rows} rows of {k:?}, {v:?}");
    let head_values = kv.head_values();
    let place = Place { pages: kv.pages, kv_heads, head_values };
    let write = |head: usize, store: &Target<'_>| {
        for (r, at) in map.rows.iter().enumerate() {
            let values = head * dim..(head + 1) * dim;
            let (k, v) = (&k.row(r)[values.clone()], &v.row(r)[values]);
            let (page, key) = place.page(map, *at);
            let start = place.start(page, head);
            // SAFETY: one job has each head, and heads are disjoint in every page.
            unsafe { store.write(level, start, head_values, key, k, v) };
        }
    };
    let target = match &mut kv.store {
        Store::F16 { k, v } => Target::F16(Cells::new(k), Cells::new(v)),
        Store::F32 { k, v } => Target::F32(Cells::new(k), Cells::new(v)),
    };
    if rows * k.width < VALUES_MIN {
        (0..kv_heads).for_each(|head| write(head, &target));
    } else {
        pool.run(kv_heads, &|head| write(head, &target));
    }
}

/// The shape of a cache while it is written.
struct Place {
    pages: usize,
    kv_heads: usize,
    head_values: usize,
}

impl Place {
    /// The page of a row and its key in it.
    fn page(&self, map: &RowMap, at: RowAt) -> (usize, usize) {
        let position = at.position as usize;
        let page = map.tables[at.table][position / TILE_KEYS] as usize;
        assert!(page < self.pages, "page {page} of {}", self.pages);
        (page, position % TILE_KEYS)
    }

    fn start(&self, page: usize, head: usize) -> usize {
        (page * self.kv_heads + head) * self.head_values
    }
}

/// The cache as the jobs of one write see it: keys, values.
enum Target<'a> {
    F16(Cells<'a, u16>, Cells<'a, u16>),
    F32(Cells<'a, f32>, Cells<'a, f32>),
}

impl Target<'_> {
    /// One row's key and value of one head.
    ///
    /// # Safety
    /// No other thread may hold this head of this page.
    unsafe fn write(
        &self,
        level: Level,
        start: usize,
        len: usize,
        key: usize,
        k_row: &[f32],
        v_row: &[f32],
    ) {
        let dim = k_row.len();
        match self {
            Self::F16(k, v) => {
                // SAFETY: the caller's promise.
                let (k, v) = unsafe { (k.slice(start, len), v.slice(start, len)) };
                let mut halves = [0; TILE_KEYS];
                let dims = k.chunks_mut(TILE_KEYS * TILE_KEYS).zip(k_row.chunks(TILE_KEYS));
                for (k, k_row) in dims {
                    let halves = &mut halves[..k_row.len()];
                    narrow(level, k_row, halves);
                    for (k, &x) in k.chunks_exact_mut(TILE_KEYS).zip(&*halves) {
                        k[key] = x;
                    }
                }
                narrow(level, v_row, &mut v[key * dim..(key + 1) * dim]);
            }
            Self::F32(k, v) => {
                // SAFETY: the caller's promise.
                let (k, v) = unsafe { (k.slice(start, len), v.slice(start, len)) };
                for (k, &x) in k.chunks_exact_mut(TILE_KEYS).zip(k_row) {
                    k[key] = x;
                }
                v[key * dim..(key + 1) * dim].copy_from_slice(v_row);
            }
        }
    }
}

/// [`arith::float::f32_to_f16`] of every value.
fn narrow(level: Level, from: &[f32], to: &mut [u16]) {
    match level {
        Level::Scalar => {
            for (to, &x) in to.iter_mut().zip(from) {
                *to = arith::float::f32_to_f16(x);
            }
        }
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { crate::attention_vector::narrow_f32_f16_vector(from, to) },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn halves_equal_the_reference_for_all_kinds_of_values() {
        let Ok(level) = Level::vector() else { return };
        // Every 61st f32, and all around the ends of the normal halves.
        let all = (0..u32::MAX / 61).map(|i| i * 61);
        let ends = [0x387f_e000_u32, 0x3880_0000, 0x477f_e000, 0x477f_f000, 0x7f80_0000];
        let ends = ends.into_iter().flat_map(|end| end - 9..=end + 9);
        let bits: Vec<u32> = ends.flat_map(|b| [b, b | 1 << 31]).chain(all).collect();
        for bits in bits.chunks(1000) {
            let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
            let (mut found, mut expected) = (vec![0; x.len()], vec![0; x.len()]);
            narrow(level, &x, &mut found);
            narrow(Level::Scalar, &x, &mut expected);
            for ((bits, found), expected) in bits.iter().zip(found).zip(expected) {
                assert_eq!(found, expected, "{bits:#010x}");
            }
        }
    }
}
