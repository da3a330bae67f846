//! Chains of comparisons, such as `a < b < c`.

use minijinja::Error;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CompareOpKind, Expr, Spanned, UnaryOpKind};

use super::operations as op;
use super::{Expression, Lowering, apply, constant};

impl Lowering {
    /// Converts `a < b < c` to `a < b and b < c`. A middle operand is computed twice, unless it
    /// calls something. Then all operands are computed first, even those that Jinja2 would not
    /// compute.
    pub(super) fn chain(
        &mut self,
        chain: &ast::Compare<'static>,
        span: Span,
    ) -> Result<Expression, Error> {
        let middle = chain.ops.iter().rev().skip(1);
        if !middle.clone().all(|compared| is_plain(&compared.expr)) {
            let first = self.expr(&chain.expr)?;
            let mut rest = Vec::new();
            for compared in &chain.ops {
                let (name, negated) = comparison(&compared.op);
                rest.push(constant(if negated { op::NOT_IN } else { name }, span));
                rest.push(self.expr(&compared.expr)?);
            }
            return Ok(apply(op::CHAIN, first, rest, span));
        }
        let mut left = &chain.expr;
        let mut all: Option<Expression> = None;
        for compared in &chain.ops {
            let (name, negated) = comparison(&compared.op);
            let (a, b) = (self.expr(left)?, self.expr(&compared.expr)?);
            let mut one = apply(name, a, vec![b], span);
            if negated {
                let op = UnaryOpKind::Not;
                one = Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr: one }, span));
            }
            all = Some(match all {
                None => one,
                Some(all) => Expr::BinOp(Spanned::new(
                    ast::BinOp {
                        op: BinOpKind::ScAnd,
                        left: all,
                        right: one,
                    },
                    span,
                )),
            });
            left = &compared.expr;
        }
        Ok(all.unwrap_or_else(|| constant(true, span)))
    }
}

/// Returns the operation of a comparison, and true if its result is negated.
fn comparison(op: &CompareOpKind) -> (&'static str, bool) {
    match op {
        CompareOpKind::Eq => (op::EQUAL, false),
        CompareOpKind::Ne => (op::UNEQUAL, false),
        CompareOpKind::Lt => (op::LESS, false),
        CompareOpKind::Lte => (op::AT_MOST, false),
        CompareOpKind::Gt => (op::MORE, false),
        CompareOpKind::Gte => (op::AT_LEAST, false),
        CompareOpKind::In => (op::IN, false),
        CompareOpKind::NotIn => (op::IN, true),
    }
}

/// Returns true if an expression may be computed twice: names, constants, and their attributes
/// and items.
fn is_plain(expr: &Expression) -> bool {
    match expr {
        Expr::Var(_) | Expr::Const(_) => true,
        Expr::GetAttr(attribute) => is_plain(&attribute.expr),
        Expr::GetItem(item) => is_plain(&item.expr) && is_plain(&item.subscript_expr),
        _ => false,
    }
}
