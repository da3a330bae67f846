use super::batches;
use crate::testing::resolve_line;

/// Nothing is recorded.
const NONE: [usize; 0] = [];

fn tokens(line: &str) -> Vec<usize> {
    let (engine, _) = resolve_line(line).expect(line);
    engine.graphs
}

#[test]
fn batches_are_finer_than_powers_of_two() {
    assert_eq!(batches(1), [1]);
    assert_eq!(batches(3), [1, 2, 3]);
    assert_eq!(batches(64), [1, 2, 4, 8, 16, 24, 32, 48, 64]);
    assert_eq!(batches(200)[9..], [96, 128, 160, 192, 200]);
}

/// One family of passes serves rows of one token and rows with all drafts.
#[test]
fn what_is_recorded_follows_from_the_batches_and_the_widest_row() {
    assert_eq!(tokens(""), NONE);
    assert_eq!(tokens("--device cuda --disable-cuda-graph"), NONE);
    assert_eq!(
        tokens("--device cuda --max-running-requests 5"),
        [1, 2, 4, 5]
    );
    assert_eq!(tokens("--device cuda --cuda-graph-max-bs 2"), [1, 2]);
    // No larger batch runs.
    let most = "--device cuda --max-running-requests 4 --cuda-graph-max-bs 300";
    assert_eq!(tokens(most), [1, 2, 4]);
    assert_eq!(tokens("--device cuda --cuda-graph-bs 3,7 1"), [1, 3, 7]);
    let drafts = "--device cuda --cuda-graph-bs 1,2,4 --speculative-algorithm WINDOW \
                  --speculative-num-steps 3 --speculative-num-draft-tokens 4";
    assert_eq!(tokens(drafts), [1, 2, 4, 8, 16]);
    let most = tokens("--device cuda --max-running-requests 1000").pop();
    assert_eq!(most, Some(256));
    // Rows with all drafts are recorded up to as many tokens, unless an option asks for more.
    let drafts = drafts.replace("--cuda-graph-bs 1,2,4", "--max-running-requests 100");
    assert_eq!(tokens(&drafts).pop(), Some(256));
    let asked = drafts.replace("--device cuda", "--device cuda --cuda-graph-max-bs 100");
    assert_eq!(tokens(&asked).pop(), Some(400));
    // Sizes are those of each DP rank, whose batches are smaller.
    let split = "--device cuda --tp 2 --nnodes 2 --node-rank 0 --dist-init-addr a:1 --dist-secret 0123456789abcdef \
                 --enable-dp-attention --dp-size 2 --max-running-requests 10";
    assert_eq!(tokens(split), [1, 2, 4, 5]);
    // Ranks that exchange data through their hosts.
    assert_eq!(tokens("--device cuda --tp 2 --gpu-id-step 0"), NONE);
}
