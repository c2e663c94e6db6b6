//! KV pages and how many hold each: streams, and keeps that share the pages of their streams.

use std::collections::{BTreeMap, BTreeSet};

/// All pages of a rank. A page is free when nobody holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    holders: Vec<u32>,
    free: BTreeSet<u32>,
}

/// Holds and releases that are not done yet, summed a page.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeMap<u32, i64>);

impl Changes {
    pub(super) fn hold(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| *self.0.entry(*page).or_default() += 1);
    }

    pub(super) fn release(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| *self.0.entry(*page).or_default() -= 1);
    }
}

impl Pages {
    pub(super) fn new(count: u32) -> Self {
        Self { holders: vec![0; count as usize], free: (0..count).collect() }
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages free after `changes`.
    pub(super) fn free_after(&self, changes: &Changes) -> u32 {
        let holders = |page: u32| i64::from(self.holders[page as usize]);
        let freed = changes.0.iter().filter(|(page, change)| holders(**page) + **change == 0);
        self.free() + freed.count() as u32
    }

    pub(super) fn hold(&mut self, pages: &[u32]) {
        for &page in pages {
            assert!(self.holders[page as usize] > 0, "a free page has no keys to share");
            self.holders[page as usize] += 1;
        }
    }

    pub(super) fn release(&mut self, pages: &[u32]) {
        for &page in pages {
            let holders = &mut self.holders[page as usize];
            *holders = holders.checked_sub(1).expect("a page is released by who holds it");
            if *holders == 0 {
                self.free.insert(page);
            }
        }
    }

    /// Gives pages back whoever holds them.
    pub(super) fn free_again(&mut self, pages: &[u32]) {
        self.free.extend(pages);
    }

    /// Takes the lowest free page.
    pub(super) fn take(&mut self) -> u32 {
        let page = self.free.pop_first().expect("pages were counted");
        self.holders[page as usize] = 1;
        page
    }
}
