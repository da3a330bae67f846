//! Batches and a model with several groups of layers.

use lockstep_types::{KvSpec, LoadFormat, ModelConfig};

use crate::pass::{Pass, fixture};

/// Returns a model of random weights with two groups of layers: every second layer caches one
/// key/value head instead of two, of twice the width.
pub fn two_caches() -> ModelConfig {
    let mut model = lockstep_model_folder::load(&fixture("llama")).unwrap();
    model.load_format = LoadFormat::Dummy;
    for (number, layer) in model.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut().unwrap();
        attention.heads = 4;
        (attention.kv_heads, attention.head_dim) = [(2, 16), (1, 32)][number % 2];
        attention.scale = (attention.head_dim as f32).powf(-0.5);
    }
    let specs: Vec<_> = model.kv_groups().iter().map(|group| group.spec).collect();
    let full = |kv_heads, head_dim| KvSpec::Full { kv_heads, head_dim };
    assert_eq!(specs, [full(2, 16), full(1, 32)]);
    model
}

/// Adds cells and page tables of further groups to a pass with all of its rows. Page `n` of
/// `pages` pages of a row is page `n + 1` in the second group, and so on.
pub fn add_groups(pass: &mut Pass, groups: usize, page_size: usize, pages: usize) {
    let (cells, tables) = (pass.cells.clone(), pass.pages.clone());
    for group in 1..groups {
        let other = |page: usize| (page + group) % pages;
        let cell = |cell: &u32| {
            let (page, offset) = (*cell as usize / page_size, *cell as usize % page_size);
            (other(page) * page_size + offset) as u32
        };
        pass.cells.extend(cells.iter().map(cell));
        let tables = tables.iter().map(|page| other(*page as usize) as u32);
        pass.pages.extend(tables);
    }
}
