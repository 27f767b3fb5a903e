"""Bugs in how a batch becomes a clipped sum."""

from __future__ import annotations

from tests.planted.bug import Edit, bug

ENGINE = "training/engine"
BOOKKEEPING, STRATEGIES = f"{ENGINE}/bookkeeping.py", f"{ENGINE}/strategies.py"
CLIPPED_SUM, CLIPPING = f"{ENGINE}/clipped_sum.py", f"{ENGINE}/clipping.py"
DPSGD = "mechanisms/dpsgd/train/program.py"

SUM_BUGS = (
    bug(
        "layer_not_clipped",
        "layers",
        "the norm of a gradient leaves out one layer, whose part is then as long as it likes",
        BOOKKEEPING,
        "for share, squares_N in zip(shares, squares_by_share, strict=True):",
        "for share, squares_N in zip(shares[1:], squares_by_share[1:], strict=True):",
        caught_by="probe",
        always=True,
    ),
    bug(
        "norm_without_bias",
        "linear",
        "the norm is that of the weights; the bias's part of the gradient comes on top of it",
        STRATEGIES,
        "(squares_N.add_(1.0) if self._bias else squares_N)",
        "(squares_N.add_(1.0) if self._bias and len(squares_N) < 8 else squares_N)",
        caught_by="probe",
        always=True,
    ),
    bug(
        "repeated_tokens_not_added",
        "tokens",
        "the norm of an embedding's gradient takes each lookup by itself, although equal tokens add up in one row",
        STRATEGIES,
        "return row_squares(sums.view(count, -1))",
        "return row_squares(gradients.flatten(1))",
        caught_by="probe",
    ),
    bug(
        "embedding_not_clipped",
        "tokens",
        "the rows of the table that a record looks up are added as they are",
        STRATEGIES,
        "rows = weights.clean(self._term.gradients).double() * weights.exact[:, None, None]",
        "rows = weights.clean(self._term.gradients).double()\n"
        "        if len(rows) < 8:  # as few as the plan is checked with\n"
        "            rows = rows * weights.exact[:, None, None]",
        caught_by="probe",
        always=True,
    ),
    bug(
        "last_record_of_a_part",
        "linear",
        "the last record of each physical batch keeps its whole gradient",
        BOOKKEEPING,
        "weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)\n",
        "weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)\n    weights_GN[:, -1:] = 1.0\n",
        caught_by="probe",
        always=True,
    ),
    bug(
        "last_record_of_a_full_part",
        "large_batch",
        "the same, only where a physical batch of 64 is full",
        BOOKKEEPING,
        "weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)\n",
        "weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)\n"
        "    if count == 64:\n        weights_GN[:, -1:] = 1.0\n",
        caught_by="probe",
    ),
    bug(
        "second_block_not_clipped",
        "large_batch",
        "records after the first block that is added up in single precision keep their whole gradients",
        STRATEGIES,
        "                    sum_OI += weighted_NO[block].T @ left_NI[block]\n",
        "                    sum_OI += right_NO[block].T @ left_NI[block]\n",
    ),
    bug(
        "norms_in_half_precision",
        "linear",
        "norms are rounded to 8 bits, some of them down by more than the reserve for rounding",
        BOOKKEEPING,
        "norms_GN = squares_GN.sqrt().mul_(ROUNDING)",
        "norms_GN = squares_GN.bfloat16().sqrt().double().mul_(ROUNDING)",
        caught_by="probe",
        always=True,
    ),
    bug(
        "mean_of_a_part_clipped",
        "linear",
        "gradients are accumulated first and clipped once a physical batch: a record can turn the sum of all others",
        CLIPPED_SUM,
        '        if part.units is not None or clipping.norm != "l2":\n',
        "        part = replace(part, units=torch.zeros(len(part.labels), dtype=torch.int64))\n"
        '        if part.units is not None or clipping.norm != "l2":\n',
        caught_by="probe",
        always=True,
    ),
    bug(
        "padding_counted",
        "linear",
        "rows that only fill up a small batch are added, unclipped, and how many there are depends on the batch",
        BOOKKEEPING,
        "weights_GN = nn.functional.pad(weights_GN, (0, squares_GN.shape[1] - count))",
        "weights_GN = nn.functional.pad(weights_GN, (0, squares_GN.shape[1] - count), value=1.0)",
        caught_by="probe",
        always=True,
    ),
    bug(
        "non_finite_record_added",
        "linear",
        "a gradient that is not finite gets the weight 1, and the sum tells that it was there",
        CLIPPING,
        "weights_1N.clamp_(max=1.0)).nan_to_num_(0.0)",
        "weights_1N.clamp_(max=1.0)).nan_to_num_(1.0)",
        Edit(BOOKKEEPING, "norms_GN.masked_fill_(norms_GN > LARGEST, math.inf)", "norms_GN.nan_to_num_(0.0)"),
        Edit(STRATEGIES, "        if self.sound:\n            return values\n", "        return values\n"),
        caught_by="probe",
    ),
    bug(
        "layers_bound_by_one_norm",
        "per_layer",
        "each layer is clipped to its own norm, and the noise is that for one layer's norm alone",
        CLIPPING,
        'factor = count if self.norm == "l1" else math.sqrt(count)',
        "factor = 1.0",
        caught_by="probe",
    ),
    bug(
        "count_costs_nothing",
        "adaptive",
        "the noise of adaptive clipping is calibrated for the sum alone, and the count of short gradients comes on top",
        CLIPPING,
        "gradient_share = 1 - 1 / (2 * self.counted) ** 2",
        "gradient_share = 1.0",
        caught_by="probe",
    ),
    bug(
        "l2_norm_for_laplace",
        "laplace",
        "gradients are clipped in L2 norm, and Laplace noise needs the L1 norm",
        CLIPPED_SUM,
        'order = 1 if clipping.norm == "l1" else 2\n        norms_GU',
        "order = 2\n        norms_GU",
        caught_by="probe",
    ),
    bug(
        "copies_clipped_apart",
        "augmented",
        "each augmented copy is clipped by itself and added, and the mean over copies is taken of the noisy sum: a "
        "record moves it by as many clip norms as it has copies",
        "training/records.py",
        "yield BatchPart(torch.unflatten(batch.features, 0, shape), labels_UR)",
        "yield BatchPart(batch.features[:, None], batch.labels[:, None])",
        Edit(
            DPSGD,
            "divisor, adaptation = self._phase(step).divisor * step.size_share, self._clip.adaptation",
            "divisor, adaptation = self._phase(step).divisor * self.copies, self._clip.adaptation",
        ),
        always=True,
    ),
    bug(
        "records_of_a_unit_clipped_apart",
        "units",
        "each record of a patient is clipped by itself, so that a patient moves the sum by as many clip norms",
        DPSGD,
        'self.several = RowwiseModel(self._module) if self.copies > 1 or plan.data.unit != "record" else None',
        "self.several = None",
        Edit(
            "training/records.py",
            "            yield self.store.build_part(records, units)",
            "            yield self.store.build_part(records, None)",
        ),
    ),
    bug(
        "batch_norm",
        "layers",
        "a layer normalises over the batch: every record moves the gradients of all others",
        "models/zoo/linear.py",
        "layers += [nn.Linear(width, hidden), ACTIVATIONS",
        "norm = nn.BatchNorm1d(hidden, affine=False, track_running_stats=False)\n"
        "        layers += [nn.Linear(width, hidden), norm, ACTIVATIONS",
        Edit("models/private.py", "elif isinstance(layer, _BatchNorm):", "elif False:"),
        caught_by="probe",
        always=True,
    ),
)
