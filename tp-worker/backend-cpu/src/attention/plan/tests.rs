use super::*;

const TILING: Tiling = Tiling {
    height: 12,
    unit: 1,
    together: 16,
};
/// Tiling in which the rows of a head fill tiles.
const WHOLE: Tiling = Tiling {
    height: 12,
    unit: 16,
    together: MAX_ROWS,
};

fn layers(kv_heads: usize, tiling: Tiling) -> Layers {
    Layers {
        shape: AttentionShape::dense(4 * kv_heads, kv_heads, 64, 0.125),
        tiling,
        partial: 66,
    }
}

fn row((q_len, kv_len): (u32, u32)) -> Row {
    Row {
        start: 0,
        q_len,
        kv_len,
        pages_start: 0,
        mask: None,
    }
}

fn plan(threads: usize, kv_heads: usize, rows: &[(u32, u32)]) -> Plan {
    plan_by(TILING, threads, kv_heads, rows)
}

fn plan_by(tiling: Tiling, threads: usize, kv_heads: usize, rows: &[(u32, u32)]) -> Plan {
    let rows: Vec<Row> = rows.iter().copied().map(row).collect();
    let mut plan = Plan::new(layers(kv_heads, tiling), threads);
    plan.make(&rows);
    plan
}

/// The busiest thread's part of the whole, in hundredths of the average.
fn largest(plan: &mut Plan) -> usize {
    100 * plan.longest(4) * plan.loads.len() / plan.cost
}

#[test]
fn what_divides_evenly_stays_whole() {
    for (threads, kv_heads, requests, tasks) in [(1, 3, 1, 1), (2, 2, 8, 8), (4, 8, 16, 16)] {
        let mut plan = plan(threads, kv_heads, &vec![(1, 4_000); requests]);
        assert_eq!((plan.joins.len(), plan.tasks.len()), (0, tasks));
        assert_eq!(largest(&mut plan), 100);
    }
    // A segment cannot be cut, so heads are.
    let mut plan = plan(2, 8, &[(1, 400)]);
    assert_eq!((plan.joins.len(), plan.tasks.len()), (0, 8));
    assert_eq!(largest(&mut plan), 100);
}

#[test]
fn a_long_request_is_cut_by_positions() {
    for (threads, kv_heads) in [(2, 1), (2, 3), (8, 2), (7, 1)] {
        for q_len in [1, 8] {
            let mut plan = plan(threads, kv_heads, &[(q_len, 32_000)]);
            assert!(plan.tasks.iter().all(|task| task.join.is_some()));
            assert!(largest(&mut plan) <= 125, "{threads} {kv_heads}");
        }
    }
}

#[test]
fn cut_tasks_cover_every_position_once() {
    for tiling in [TILING, WHOLE] {
        let rows = [(1, 9_000), (3, 100), (1, 700), (300, 1_000)];
        let mut plan = plan_by(tiling, 5, 3, &rows);
        let seen = |row: usize, head, query| -> Vec<usize> {
            let tasks = plan.tasks.iter();
            let tasks = tasks.filter(|task| task.row == row && task.heads.contains(&head));
            let tasks = tasks.filter(|task| task.queries.contains(&query));
            tasks.flat_map(|task| task.segments.clone()).collect()
        };
        for (row, (q_len, kv_len)) in rows.into_iter().enumerate() {
            for head in 0..3 {
                for query in 0..q_len as usize {
                    let found = seen(row, head, query);
                    assert!(found.iter().copied().eq(0..found.len()));
                    assert!(found.len() * SEGMENT > kv_len as usize + query);
                }
            }
        }
        assert!(largest(&mut plan) <= 125);
    }
}

#[test]
fn tasks_skip_what_lies_behind_the_window() {
    let window = std::num::NonZeroUsize::new(1_000);
    let mut layers = layers(2, TILING);
    layers.shape.window = window;
    for (threads, q_len) in [(1, 1), (8, 1), (2, 700)] {
        let mut plan = Plan::new(layers, threads);
        plan.make(&[row((q_len, 9_000))]);
        for task in &plan.tasks {
            let first = 9_000 + task.queries.start + 1 - 1_000;
            assert!(task.segments.start >= first / SEGMENT, "{task:?}");
            assert!(task.segments.end * SEGMENT < 9_000 + task.queries.end + SEGMENT);
        }
        // A query sees 1,000 positions, whatever lies before.
        let pairs = 2 * (q_len as usize * 4 + plan.tasks.len() * PACKING_ROWS) * 1_000;
        assert!(plan.cost <= 2 * pairs, "{} for {pairs}", plan.cost);
    }
}

#[test]
fn heads_stay_together_as_far_as_threads_have_work() {
    let heads = |tiling, threads, kv_heads, rows: &[(u32, u32)]| {
        let mut plan = plan_by(tiling, threads, kv_heads, rows);
        assert!(largest(&mut plan) <= 113, "{threads} {kv_heads} {rows:?}");
        plan.tasks.iter().map(|task| task.heads.len()).max()
    };
    let requests = |count| vec![(1, 400); count];
    for tiling in [TILING, WHOLE] {
        assert_eq!(heads(tiling, 2, 8, &[(1, 9_000)]), Some(8));
        assert_eq!(heads(tiling, 2, 8, &requests(8)), Some(8));
        assert_eq!(heads(tiling, 2, 8, &requests(4)), Some(4));
        assert_eq!(heads(tiling, 2, 8, &requests(1)), Some(1));
        // Rows that fill a task alone.
        assert_eq!(heads(tiling, 2, 8, &[(512, 9_000)]), Some(1));
    }
    // Tasks take fewer heads if there are slightly more requests than wanted tasks.
    for (threads, requests) in [(16, 10), (8, 5), (16, 65), (8, 33), (4, 17)] {
        assert!(heads(TILING, threads, 8, &vec![(1, 400); requests]) < Some(8));
    }
    // 12 heads fit if each takes 16 rows, and 6 if each takes 32: parts are about equal.
    assert_eq!(heads(WHOLE, 2, 32, &requests(8)), Some(11));
    assert_eq!(heads(WHOLE, 2, 8, &[(8, 9_000)]), Some(4));
    assert_eq!(heads(TILING, 2, 8, &[(4, 9_000)]), Some(8));
    assert_eq!(heads(TILING, 2, 8, &[(5, 9_000)]), Some(1));
}

#[test]
fn a_pass_plans_each_shape_of_its_layers_once() {
    let (mut plans, shapes) = (Plans::new(2), [layers(1, TILING), layers(3, TILING)]);
    for (pass, kv_len) in [(1, 9_000), (2, 9_001), (3, 9_001)] {
        let rows = [row((1, kv_len))];
        for layer in 0..6 {
            let plan = plans.of(pass, shapes[layer % 2], &rows);
            // A plan that is made again has tasks again.
            let planned = !std::mem::take(&mut plan.tasks).is_empty();
            assert_eq!(planned, layer < 2, "layer {layer} of pass {pass}");
            assert_eq!(plan.layers, shapes[layer % 2]);
        }
    }
    assert_eq!(plans.plans.len(), 2);
}
