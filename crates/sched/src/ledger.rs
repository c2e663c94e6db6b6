//! KV pages as the stages will hold them after the next round: by streams, and by kept states that
//! share the pages of the streams that wrote them.
//!
//! The numbers are rank 0's own; counts and sharing are the stages'.

/// All pages of the tightest stage.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// By page: streams that hold it, and kept states.
    holders: Vec<Holders>,
    free: Vec<u32>,
    /// Pages that kept states alone hold.
    idle: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    streams: u32,
    keeps: u32,
}

impl Holders {
    fn is_idle(self) -> bool {
        self.streams == 0 && self.keeps > 0
    }
}

impl Ledger {
    pub fn new(pages: u32) -> Self {
        let holders = vec![Holders::default(); pages as usize];
        Self { holders, free: (0..pages).rev().collect(), idle: 0 }
    }

    /// Pages that nobody holds.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages that somebody holds.
    pub fn used(&self) -> u32 {
        (self.holders.len() - self.free.len()) as u32
    }

    /// Pages that come free when every kept state is dropped.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    /// Makes a stream's pages `count`.
    pub fn resize(&mut self, pages: &mut Vec<u32>, count: u32) {
        while pages.len() > count as usize {
            let page = pages.pop().expect("it has more");
            self.change(page, |holders| holders.streams -= 1);
        }
        while pages.len() < count as usize {
            let page = self.free.pop().expect("pages were reserved");
            self.holders[page as usize].streams = 1;
            pages.push(page);
        }
    }

    /// A stream shares these pages.
    pub fn share(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.change(page, |holders| holders.streams += 1));
    }

    /// A kept state holds these pages.
    pub fn keep(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.change(page, |holders| holders.keeps += 1));
    }

    /// A kept state gives these pages up.
    pub fn drop_kept(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.change(page, |holders| holders.keeps -= 1));
    }

    /// Whether kept states alone hold a page.
    pub fn is_idle(&self, page: u32) -> bool {
        self.holders[page as usize].is_idle()
    }

    /// Whether a page comes free when one kept state gives it up.
    pub fn is_last(&self, page: u32) -> bool {
        let Holders { streams, keeps } = self.holders[page as usize];
        streams == 0 && keeps == 1
    }

    fn change(&mut self, page: u32, change: impl FnOnce(&mut Holders)) {
        let holders = &mut self.holders[page as usize];
        let before = *holders;
        change(holders);
        let after = *holders;
        assert!(before.streams + before.keeps > 0, "a free page has nothing to share");
        self.idle = self.idle + u32::from(after.is_idle()) - u32::from(before.is_idle());
        if after.streams + after.keeps == 0 {
            self.free.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_when_neither_stream_nor_keep_holds_it() {
        let mut ledger = Ledger::new(5);
        let mut writer = Vec::new();
        ledger.resize(&mut writer, 3);
        ledger.keep(&writer[..2]);
        assert_eq!((ledger.used(), ledger.idle()), (3, 0));
        let kept = writer[..2].to_vec();
        ledger.resize(&mut writer, 0);
        assert_eq!((ledger.used(), ledger.idle(), ledger.free()), (2, 2, 3));
        let mut reader = kept[..1].to_vec();
        ledger.share(&reader);
        assert_eq!((ledger.used(), ledger.idle()), (2, 1));
        assert!(!ledger.is_last(kept[0]) && ledger.is_last(kept[1]));
        ledger.resize(&mut reader, 4);
        assert_eq!((ledger.free(), ledger.used()), (0, 5));
        ledger.drop_kept(&kept);
        assert_eq!((ledger.free(), ledger.idle()), (1, 0));
        ledger.resize(&mut reader, 0);
        assert_eq!(ledger.free(), 5);
    }
}
