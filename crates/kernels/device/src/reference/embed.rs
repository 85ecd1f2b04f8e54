//! Rows of tables: tokens and positions.

/// Where a token's row begins in a part of a table, if it is there.
fn row_of(token: u32, first: usize, width: usize, part: usize) -> Option<usize> {
    let start = (token as usize).checked_sub(first)? * width;
    (start < part).then_some(start)
}

fn width_of(elements: usize, tokens: &[u32]) -> usize {
    let width = elements / tokens.len().max(1);
    assert_eq!(elements, tokens.len() * width);
    width
}

pub fn embed(tokens: &[u32], first: usize, table: &[f64], y: &mut [f64]) {
    let width = width_of(y.len(), tokens);
    for (row, token) in tokens.iter().enumerate() {
        let y = &mut y[row * width..(row + 1) * width];
        match row_of(*token, first, width, table.len()) {
            Some(start) => y.copy_from_slice(&table[start..start + width]),
            None => y.fill(0.0),
        }
    }
}

pub fn embed_back(tokens: &[u32], first: usize, dy: &[f64], dtable: &mut [f64]) {
    let width = width_of(dy.len(), tokens);
    for (row, token) in tokens.iter().enumerate() {
        if let Some(start) = row_of(*token, first, width, dtable.len()) {
            (0..width).for_each(|i| dtable[start + i] += dy[row * width + i]);
        }
    }
}

pub fn add_positions(width: usize, places: &[u32], positions: &[f64], y: &mut [f64]) {
    assert!(y.len().is_multiple_of(width * places.len()));
    for (y, place) in y.chunks_exact_mut(width).zip(places.iter().cycle()) {
        (0..width).for_each(|i| y[i] += positions[*place as usize * width + i]);
    }
}

pub fn add_positions_back(width: usize, places: &[u32], dy: &[f64], dpositions: &mut [f64]) {
    assert!(dy.len().is_multiple_of(width * places.len()));
    for (dy, place) in dy.chunks_exact(width).zip(places.iter().cycle()) {
        (0..width).for_each(|i| dpositions[*place as usize * width + i] += dy[i]);
    }
}
