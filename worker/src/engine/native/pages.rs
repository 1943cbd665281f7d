//! Allocates the pages of the cache: a free list and a count of owners per page. Only the native engine uses
//! it; a page with several owners is never written.

use lode_kernels::PAGE_LEN;

/// Number of pages for a sequence of `len` tokens.
pub(super) fn pages_for(len: usize) -> usize {
    len.div_ceil(PAGE_LEN)
}

/// The pages of a cache.
#[derive(Debug)]
pub(super) struct Pages {
    owners: Vec<u32>,
    free: Vec<u32>,
}

impl Pages {
    pub(super) fn new(pages: u32) -> Self {
        // The lowest ids are taken first, so memory is touched from the front.
        Self { owners: vec![0; pages as usize], free: (0..pages).rev().collect() }
    }

    /// Number of pages without an owner.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page, which gets one owner. The caller has checked that there is one.
    pub(super) fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("the number of free pages was checked");
        self.owners[page as usize] = 1;
        page
    }

    /// Adds an owner.
    pub(super) fn share(&mut self, page: u32) {
        self.owners[page as usize] += 1;
    }

    /// Removes an owner; a page without owners becomes free.
    pub(super) fn give_back(&mut self, page: u32) {
        let owners = &mut self.owners[page as usize];
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    pub(super) fn is_shared(&self, page: u32) -> bool {
        self.owners[page as usize] > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_owners() {
        let mut pages = Pages::new(3);
        let (a, b) = (pages.take(), pages.take());
        assert_eq!((a, b, pages.free()), (0, 1, 1));
        pages.share(a);
        assert!(pages.is_shared(a) && !pages.is_shared(b));
        pages.give_back(a);
        pages.give_back(b);
        assert!(!pages.is_shared(a));
        assert_eq!((pages.free(), pages.take()), (2, b));
    }

    #[test]
    fn lengths() {
        for (len, expect) in [(0, 0), (1, 1), (PAGE_LEN, 1), (PAGE_LEN + 1, 2)] {
            assert_eq!(pages_for(len), expect);
        }
    }
}
