use proptest::prelude::*;

use super::DraftShape;

proptest! {
    #[test]
    fn every_depth_has_its_share_of_nodes(
        (num_steps, topk, num_draft_tokens) in (1usize..=16, 1usize..=8)
            .prop_flat_map(|(steps, topk)| {
                let most = DraftShape::most_tokens(steps, topk);
                (Just(steps), Just(topk), steps + 1..=most)
            }),
    ) {
        let shape = DraftShape { num_steps, topk, num_draft_tokens };
        prop_assert_eq!(shape.draft_tokens_at(0), 1);
        prop_assert_eq!(shape.draft_tokens_at(num_steps), num_draft_tokens);
        prop_assert_eq!(shape.draft_tokens_at(num_steps + 1), num_draft_tokens);
        for depth in 1..=num_steps {
            let tokens = shape.draft_tokens_at(depth);
            // The tree has a path of `depth`, is possible, and has no more tokens than at a
            // larger depth.
            prop_assert!(depth < tokens);
            prop_assert!(tokens <= DraftShape::most_tokens(depth, topk));
            prop_assert!(shape.draft_tokens_at(depth - 1) <= tokens);
            if topk == 1 {
                prop_assert_eq!(tokens, depth + 1);
            }
        }
    }
}
