//! Conversion of expressions.

use minijinja::Error;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Spanned, UnaryOpKind};

use super::operations as op;
use super::{Expression, Lowering, apply, constant, refused};
use crate::chat::python::{filters, tests};

/// Maximum nesting of expressions, chosen to fit a thread's stack.
const DEEPEST: usize = 200;

impl Lowering {
    pub(super) fn expr(&mut self, expr: &Expression) -> Result<Expression, Error> {
        if self.depth > DEEPEST {
            return Err(refused(expr.span(), "the expression is nested too deeply"));
        }
        self.depth += 1;
        let lowered = self.expr_inside(expr);
        self.depth -= 1;
        lowered
    }

    fn expr_inside(&mut self, expr: &Expression) -> Result<Expression, Error> {
        let span = expr.span();
        Ok(match expr {
            Expr::Var(name) => {
                self.specials.iter_mut().for_each(|open| open.note(name.id));
                super::variable(name.id, span)
            }
            Expr::Const(known) => constant(known.value.clone(), span),
            Expr::UnaryOp(unary) => {
                let expr = self.expr(&unary.expr)?;
                match unary.op {
                    UnaryOpKind::Not => {
                        let op = UnaryOpKind::Not;
                        Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr }, span))
                    }
                    UnaryOpKind::Neg => apply(op::NEGATE, expr, Vec::new(), span),
                }
            }
            Expr::BinOp(binary) => self.binary(binary, span)?,
            Expr::Compare(chain) => self.chain(chain, span)?,
            Expr::IfExpr(choice) => self.choice(choice, span)?,
            Expr::Filter(filter) => self.filter(filter, span)?,
            Expr::Test(test) => self.test(test, span)?,
            Expr::GetAttr(attribute) => {
                let expr = self.expr(&attribute.expr)?;
                let name = constant(attribute.name, span);
                apply(op::ATTRIBUTE, expr, vec![name], span)
            }
            Expr::GetItem(item) => {
                let expr = self.expr(&item.expr)?;
                let key = self.expr(&item.subscript_expr)?;
                apply(op::ITEM, expr, vec![key], span)
            }
            Expr::Slice(slice) => self.slice(slice, span)?,
            Expr::Call(call) => self.call(call, span)?,
            Expr::List(list) => {
                let items = self.all(&list.items)?;
                made(Expr::List(Spanned::new(ast::List { items }, span)), span)
            }
            Expr::Tuple(tuple) => {
                let items = self.all(&tuple.items)?;
                made(Expr::Tuple(Spanned::new(ast::Tuple { items }, span)), span)
            }
            Expr::Map(map) => {
                let mut fields = Vec::with_capacity(2 * map.keys.len());
                for (key, value) in map.keys.iter().zip(&map.values) {
                    fields.push(self.expr(key)?);
                    fields.push(self.expr(value)?);
                }
                apply(op::DICT, constant((), span), fields, span)
            }
        })
    }

    fn slice(&mut self, slice: &ast::Slice<'static>, span: Span) -> Result<Expression, Error> {
        let expr = self.expr(&slice.expr)?;
        let mut bound = |bound: &Option<Expression>| match bound {
            Some(bound) => self.expr(bound),
            None => Ok(constant((), span)),
        };
        let bounds = vec![
            bound(&slice.start)?,
            bound(&slice.stop)?,
            bound(&slice.step)?,
        ];
        // Jinja2 computes constant expressions by rules that forgive more.
        let name = if is_constant(&slice.expr) {
            op::CONSTANT_SLICE
        } else {
            op::SLICE
        };
        Ok(apply(name, expr, bounds, span))
    }

    fn all(&mut self, items: &[Expression]) -> Result<Vec<Expression>, Error> {
        items.iter().map(|item| self.expr(item)).collect()
    }

    fn binary(&mut self, binary: &ast::BinOp<'static>, span: Span) -> Result<Expression, Error> {
        let name = match binary.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let op = match binary.op {
                    BinOpKind::ScAnd => BinOpKind::ScAnd,
                    _ => BinOpKind::ScOr,
                };
                let (left, right) = (self.expr(&binary.left)?, self.expr(&binary.right)?);
                let both = ast::BinOp { op, left, right };
                return Ok(Expr::BinOp(Spanned::new(both, span)));
            }
            BinOpKind::Concat => return self.concatenation(binary, span),
            BinOpKind::Add => op::ADD,
            BinOpKind::Sub => op::SUBTRACT,
            BinOpKind::Mul => op::MULTIPLY,
            BinOpKind::Div => op::DIVIDE,
            BinOpKind::FloorDiv => op::FLOOR_DIVIDE,
            BinOpKind::Rem => op::REMAINDER,
            BinOpKind::Pow => op::POWER,
            BinOpKind::Eq => op::EQUAL,
            BinOpKind::Ne => op::UNEQUAL,
            BinOpKind::Lt => op::LESS,
            BinOpKind::Lte => op::AT_MOST,
            BinOpKind::Gt => op::MORE,
            BinOpKind::Gte => op::AT_LEAST,
            BinOpKind::In => op::IN,
        };
        let (left, right) = (self.expr(&binary.left)?, self.expr(&binary.right)?);
        Ok(apply(name, left, vec![right], span))
    }

    /// Converts `a ~ b ~ c` to one operation.
    fn concatenation(
        &mut self,
        binary: &ast::BinOp<'static>,
        span: Span,
    ) -> Result<Expression, Error> {
        let mut parts = vec![&binary.right];
        let mut left = &binary.left;
        while let Expr::BinOp(inner) = left {
            let BinOpKind::Concat = inner.op else { break };
            parts.push(&inner.right);
            left = &inner.left;
        }
        parts.reverse();
        let first = self.expr(left)?;
        let rest = parts.into_iter().map(|part| self.expr(part));
        Ok(apply(
            op::CONCATENATE,
            first,
            rest.collect::<Result<_, _>>()?,
            span,
        ))
    }

    fn choice(&mut self, choice: &ast::IfExpr<'static>, span: Span) -> Result<Expression, Error> {
        let in_condition = std::mem::replace(&mut self.in_condition, true);
        let lowered = ast::IfExpr {
            test_expr: self.expr(&choice.test_expr)?,
            true_expr: self.expr(&choice.true_expr)?,
            false_expr: choice
                .false_expr
                .as_ref()
                .map(|expr| self.expr(expr))
                .transpose()?,
        };
        self.in_condition = in_condition;
        Ok(Expr::IfExpr(Spanned::new(lowered, span)))
    }

    fn filter(&mut self, filter: &ast::Filter<'static>, span: Span) -> Result<Expression, Error> {
        if filters::REFUSED.contains(&filter.name) {
            let name = filter.name;
            return Err(refused(
                span,
                format!("the filter {name:?} is not supported"),
            ));
        }
        if !self.in_condition && !filters::exists(filter.name) {
            return Err(refused(
                span,
                format!("there is no filter {:?}", filter.name),
            ));
        }
        let expr = filter
            .expr
            .as_ref()
            .map(|expr| self.expr(expr))
            .transpose()?;
        let (name, args) = (filter.name, self.args(&filter.args, span)?);
        Ok(Expr::Filter(Spanned::new(
            ast::Filter { name, expr, args },
            span,
        )))
    }

    fn test(&mut self, test: &ast::Test<'static>, span: Span) -> Result<Expression, Error> {
        if !self.in_condition && !tests::exists(test.name) {
            return Err(refused(span, format!("there is no test {:?}", test.name)));
        }
        let (name, expr) = (test.name, self.expr(&test.expr)?);
        let args = self.args(&test.args, span)?;
        Ok(Expr::Test(Spanned::new(
            ast::Test { name, expr, args },
            span,
        )))
    }

    fn call(&mut self, call: &ast::Call<'static>, span: Span) -> Result<Expression, Error> {
        let mut args = self.args(&call.args, span)?;
        match &call.expr {
            // The list of a recursion goes straight into the engine's loop.
            Expr::Var(name) if name.id == "loop" => {
                args = args
                    .into_iter()
                    .map(|arg| match arg {
                        CallArg::Pos(list) => {
                            CallArg::Pos(apply(op::ITERATE, list, Vec::new(), span))
                        }
                        other => other,
                    })
                    .collect();
            }
            Expr::GetAttr(method) if method.name == "cycle" => {
                let (name, expr) = (op::CYCLE, Some(self.expr(&method.expr)?));
                return Ok(Expr::Filter(Spanned::new(
                    ast::Filter { name, expr, args },
                    span,
                )));
            }
            _ => {}
        }
        let expr = self.callee(&call.expr, span)?;
        Ok(Expr::Call(Spanned::new(ast::Call { expr, args }, span)))
    }

    /// Converts the callee of a call. The engine recognises a method or a block of the
    /// template by its form.
    pub(super) fn callee(&mut self, callee: &Expression, span: Span) -> Result<Expression, Error> {
        let Expr::GetAttr(method) = callee else {
            return self.expr(callee);
        };
        let expr = match &method.expr {
            Expr::Var(name) if name.id == "self" => super::variable("self", span),
            object => self.expr(object)?,
        };
        let name = method.name;
        Ok(Expr::GetAttr(Spanned::new(
            ast::GetAttr { expr, name },
            span,
        )))
    }

    pub(super) fn args(
        &mut self,
        args: &[CallArg<'static>],
        span: Span,
    ) -> Result<Vec<CallArg<'static>>, Error> {
        let mut names: Vec<&str> = Vec::new();
        let mut lowered = Vec::with_capacity(args.len());
        let (mut list, mut map) = (false, false);
        for arg in args {
            let ordered = match arg {
                CallArg::Pos(_) => !list && !map,
                CallArg::PosSplat(_) => !std::mem::replace(&mut list, true) && !map,
                CallArg::Kwarg(..) => !map,
                CallArg::KwargSplat(_) => !std::mem::replace(&mut map, true),
            };
            if !ordered {
                return Err(refused(span, "an argument stands behind '*' or '**'"));
            }
            lowered.push(match arg {
                CallArg::Pos(expr) => CallArg::Pos(self.expr(expr)?),
                CallArg::Kwarg(name, expr) => {
                    if names.contains(name) {
                        return Err(refused(span, format!("the argument {name:?} is repeated")));
                    }
                    names.push(name);
                    CallArg::Kwarg(name, self.expr(expr)?)
                }
                CallArg::PosSplat(expr) => {
                    let list = apply(op::UNPACKED, self.expr(expr)?, Vec::new(), span);
                    CallArg::PosSplat(list)
                }
                CallArg::KwargSplat(expr) => {
                    let map = apply(op::NAMED, self.expr(expr)?, Vec::new(), span);
                    CallArg::KwargSplat(map)
                }
            });
        }
        Ok(lowered)
    }
}

/// Makes a list or tuple. Its nesting is checked unless it is a constant.
fn made(list: Expression, span: Span) -> Expression {
    match list.as_const() {
        Some(_) => list,
        None => apply(op::MADE, list, Vec::new(), span),
    }
}

/// Returns true if an expression has no names and no calls.
fn is_constant(expr: &Expression) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::UnaryOp(unary) => is_constant(&unary.expr),
        Expr::BinOp(binary) => is_constant(&binary.left) && is_constant(&binary.right),
        Expr::Slice(slice) => is_constant(&slice.expr),
        Expr::GetItem(item) => is_constant(&item.expr) && is_constant(&item.subscript_expr),
        Expr::List(list) => list.items.iter().all(is_constant),
        Expr::Tuple(tuple) => tuple.items.iter().all(is_constant),
        Expr::Filter(filter) => filter.args.is_empty() && filter.expr.iter().all(is_constant),
        _ => false,
    }
}
