//! Static shares of work per thread.

use std::ops::Range;

use crate::pool::Pool;

/// Number of elements below which handing them to a thread is not worth it.
pub(crate) const MIN_ELEMENTS: usize = 8_192;
/// Chunks for each thread: a thread that is held up leaves some to others.
const CHUNKS_PER_THREAD: usize = 4;

/// The part of `0..items` that falls to share `index` of `shares`; sizes differ by at most 1.
pub(crate) fn share(items: usize, shares: usize, index: usize) -> Range<usize> {
    let (each, extra) = (items / shares, items % shares);
    let start = index * each + index.min(extra);
    start..start + each + usize::from(index < extra)
}

/// A matrix that threads write disjoint parts of.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through the unsafe methods, whose callers promise
// disjoint parts; moving elements between threads is fine for `T: Send`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Self {
            start: data.as_mut_ptr(),
            len: data.len(),
            borrow: std::marker::PhantomData,
        }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No two live slices of one `Shared` may overlap, on any thread.
    ///
    /// # Panics
    /// Panics when `range` is out of bounds.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part lies outside"
        );
        // SAFETY: in bounds, and unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements of `range`, to be read.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    ///
    /// # Panics
    /// Panics when `range` is out of bounds.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part lies outside"
        );
        // SAFETY: in bounds, and unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// The elements of `range`, to be shared by their own places. Places of both lists may be
    /// the same elements.
    ///
    /// # Panics
    /// Panics when `range` is out of bounds.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part lies outside"
        );
        Self {
            // SAFETY: in bounds, as was just checked.
            start: unsafe { self.start.add(range.start) },
            len: range.len(),
            borrow: std::marker::PhantomData,
        }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address of the first element, for kernels that write strided tiles.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start
    }
}

/// Runs `body(rows, part)` over contiguous row ranges of `data` `[_, width]`,
/// on as many threads as the size is worth.
pub(crate) fn for_rows<T: Send>(
    pool: &mut Pool,
    data: &mut [T],
    width: usize,
    body: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    if data.is_empty() || width == 0 {
        return;
    }
    let rows = data.len() / width;
    let chunks = (pool.threads() * CHUNKS_PER_THREAD)
        .min(data.len().div_ceil(MIN_ELEMENTS))
        .min(rows);
    if chunks <= 1 || pool.threads() == 1 {
        return body(0..rows, data);
    }
    let shared = Shared::new(data);
    pool.for_chunks(chunks, |_, chunk| {
        let rows = share(rows, chunks, chunk);
        // SAFETY: chunks are disjoint row ranges, and each is run once.
        let part = unsafe { shared.slice(rows.start * width..rows.end * width) };
        body(rows, part);
    });
}

/// Some columns of a matrix that threads share by columns.
pub(crate) struct Columns<'a, T> {
    matrix: &'a Shared<'a, T>,
    width: usize,
    columns: Range<usize>,
}

impl<T> Columns<'_, T> {
    /// The columns of one row.
    ///
    /// # Panics
    /// Panics when there is no such row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        let start = row * self.width;
        // SAFETY: no other thread has these columns of any row, and the slice borrows `self`.
        unsafe {
            self.matrix
                .slice(start + self.columns.start..start + self.columns.end)
        }
    }
}

/// Runs `body(columns, part)` over ranges of the columns of `data` `[_, width]`. The body
/// writes `rows` of the rows. The number of threads follows from the size of that work.
pub(crate) fn for_columns<T: Send>(
    pool: &mut Pool,
    data: &mut [T],
    width: usize,
    rows: usize,
    body: impl Fn(Range<usize>, &mut Columns<'_, T>) + Sync,
) {
    let parts = (width * rows).div_ceil(MIN_ELEMENTS);
    let parts = parts.min(pool.threads()).min(width);
    let shared = Shared::new(data);
    let run = |part: usize| {
        let columns = share(width, parts, part);
        let mut matrix = Columns {
            matrix: &shared,
            width,
            columns: columns.clone(),
        };
        body(columns, &mut matrix);
    };
    match parts {
        0 => {}
        1 => run(0),
        _ => pool.for_chunks(parts, |_, part| run(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (items, shares) in [(0, 3), (1, 3), (7, 3), (9, 3), (2, 2), (100, 7)] {
            let parts: Vec<usize> = (0..shares).flat_map(|i| share(items, shares, i)).collect();
            assert_eq!(parts, (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_are_visited_once() {
        let mut pool = Pool::new(3, None, false).unwrap();
        let mut data = vec![0u32; 5 * 7_001];
        for_rows(&mut pool, &mut data, 5, |rows, part| {
            for (row, values) in rows.zip(part.chunks_exact_mut(5)) {
                values.iter_mut().for_each(|value| *value += row as u32 + 1);
            }
        });
        assert!(
            data.chunks(5)
                .enumerate()
                .all(|(i, row)| row.iter().all(|&x| x == i as u32 + 1))
        );
    }

    #[test]
    fn columns_of_rows_anywhere_are_written_once() {
        let (width, rows) = (3_001, 7);
        for wanted in [vec![], vec![5], vec![6, 0, 3, 2, 5]] {
            let mut pool = Pool::new(3, None, false).unwrap();
            let mut data = vec![0u32; rows * width];
            for_columns(
                &mut pool,
                &mut data,
                width,
                wanted.len(),
                |columns, part| {
                    for &row in &wanted {
                        for (value, column) in part.row(row).iter_mut().zip(columns.clone()) {
                            *value += (row * width + column) as u32 + 1;
                        }
                    }
                },
            );
            for (at, value) in (0..).zip(&data) {
                let written = wanted.contains(&(at / width));
                assert_eq!(*value, if written { at as u32 + 1 } else { 0 });
            }
        }
    }
}
