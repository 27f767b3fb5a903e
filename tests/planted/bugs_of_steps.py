"""Bugs in noise, sampling, ledger and update of a step, and in several processes."""

from __future__ import annotations

from tests.planted.bug import Edit, bug

GATE, NOISE, STEPS = "training/run/gate.py", "training/steps/noise.py", "training/steps/noisy_steps.py"
EXCHANGE, SHARDED = "training/processes/shards.py", "training/engine/sharded_sum.py"
BATCHES, PROCESSES = "noisy_sum/batches.py", "training/processes/processes.py"
ENTROPY, DPSGD = "noise/entropy.py", "training/steps/clipped_sums.py"
SCALE = "scale = multiplier_of(ticket.event) * clipped.sensitivity(Neighbouring.ADD_OR_REMOVE_ONE)"
NUMBER = "number = (shard << 64) + (ticket.index << 32) + ticket.used"
SAMPLED = 'stream = self._secrets.stream("sampling", stream_number(ticket.event, ticket.index))'
TAKEN_BACK = "if isinstance(strategy, PreviousStep) and strategy.previous and before is not None:"
RELEASED = "noisy = self.processes.released(lambda: self.gate.release(ticket, summed), summed.value)"
SHARD_RELEASED = "return self._noise.release(ticket, clipped, shard)"
SUMMED = "return clipped_sum(self._module, self._loss, batch, clipping, max_rows, passes, world_size())"

NOISE_BUGS = (
    bug(
        "noise_halved",
        "linear",
        "half the noise that is charged",
        GATE,
        SCALE,
        SCALE.replace("= ", "= 0.5 * ", 1),
        caught_by="probe",
        always=True,
    ),
    bug(
        "noise_a_tenth_short",
        "linear",
        "a tenth less noise than is charged",
        GATE,
        SCALE,
        SCALE.replace("= ", "= 0.9 * ", 1),
        caught_by="probe",
    ),
    bug(
        "noise_doubled",
        "linear",
        "noise is added twice: private enough, and not the program that was planned",
        GATE,
        "        noisy = add_noise(\n            value,",
        "        add_noise(value, distribution_of(ticket.event), scale, self._secrets.stream('noise', ticket.index))\n"
        "        noisy = add_noise(\n            value,",
        caught_by="probe",
        always=True,
    ),
    bug(
        "noise_after_averaging",
        "linear",
        "the sum is divided by the batch before noise is added, and the noise is divided by twice as much",
        STEPS,
        RELEASED,
        "noisy = self.processes.released(\n"
        "            lambda: 64\n"
        "            * self.gate.release(ticket, replace(summed, value=summed.value / 64, bound=summed.bound / 128)),\n"
        "            summed.value,\n        )",
        always=True,
    ),
    bug(
        "same_noise_every_step",
        "linear",
        "every step draws from the stream of the first: the difference of two noisy sums has no noise",
        GATE,
        NUMBER,
        "number = (shard << 64) + ticket.used",
    ),
    bug(
        "same_noise_in_a_pass",
        "dealt",
        "all batches of an epoch get one noise",
        GATE,
        NUMBER,
        "number = (shard << 64) + (ticket.index << 32)",
    ),
    bug(
        "same_noise_after_resume",
        "linear",
        "every attempt has the same root of randomness, so that a resumed run draws its noise again",
        ENTROPY,
        "root = os.urandom(32)",
        'root = hashlib.sha256(b"dprecipe").digest()',
        always=True,
    ),
    bug(
        "noise_not_taken_back",
        "correlated",
        "the noise of the step before is forgotten: the fresh noise of all steps stays in the model",
        GATE,
        TAKEN_BACK,
        TAKEN_BACK.replace("if ", "if False and ", 1),
        caught_by="probe",
        always=True,
    ),
    bug(
        "other_noise_taken_back",
        "correlated",
        "what is taken back are draws that no step has added",
        GATE,
        'self._secrets.stream("noise", before)',
        'self._secrets.stream("noise", -before)',
        caught_by="probe",
    ),
    bug(
        "half_of_it_taken_back",
        "correlated",
        "a step takes back half of what it is charged for: the noise of another matrix",
        GATE,
        "-strategy.previous,",
        "-0.5 * strategy.previous,",
        caught_by="probe",
    ),
    bug(
        "noise_of_bands_forgotten",
        "bands",
        "the noise of earlier steps is kept and never taken back: the fresh noise of all steps stays in the model",
        GATE,
        "earlier = [self._take_back(strategy, value, noises)]",
        "self._take_back(strategy, value, noises)",
        caught_by="probe",
        always=True,
    ),
    bug(
        "draws_taken_back_for_noise",
        "bands",
        "what is kept of a step is its fresh noise, not all of it: the noise of another matrix",
        NOISE,
        "moved[:half], moved[half:] = cosine, sine",
        "moved[:half], moved[half:] = cosine - moved[:half], sine - moved[half:]",
        caught_by="probe",
    ),
    bug(
        "a_band_too_few",
        "bands",
        "the noise of the earliest step of a band is not taken back",
        GATE,
        "noises.popleft().mul_(-weights[-1])",
        "noises.popleft().mul_(0.0)",
        caught_by="probe",
    ),
    bug(
        "parts_by_number",
        "bands",
        "the part of a unit is its place in the data: without a unit, others are in other parts",
        BATCHES,
        "self._order, self._ends = deal_units(count, units, stream)",
        "self._order = np.argsort(np.arange(units) % count, kind='stable')\n"
        "        self._ends = np.searchsorted(np.sort(np.arange(units) % count), np.arange(count + 1))",
        always=True,
    ),
    bug(
        "parts_dealt_for_each_group",
        "bands",
        "each group of steps has parts of its own: a record may be in two steps of a band",
        STEPS,
        "if self._parts is None:\n                self._parts = UnitParts.deal(ticket.event, self._units, "
        'self._secrets.stream("sampling", ORDER))',
        'self._parts = UnitParts.deal(ticket.event, self._units, self._secrets.stream("sampling", -ticket.index))',
    ),
    bug(
        "batches_of_all_parts",
        "bands",
        "each step draws from all of the data, at the rate of the whole: a record may be in two steps of a band",
        BATCHES,
        "yield parts.draw(part, rate, stream)",
        "yield draw_poisson(rate / count, units, stream)",
        always=True,
    ),
    bug(
        "rate_of_the_whole",
        "bands",
        "a unit joins the batches of its part at the rate that it would have without parts",
        BATCHES,
        "yield parts.draw(part, rate, stream)",
        "yield parts.draw(part, rate / count, stream)",
    ),
    bug(
        "passes_in_a_new_order",
        "correlated",
        "each pass has an order of its own: a record may be in two steps in a row, whose noise it then moves twice",
        BATCHES,
        "return ORDER if isinstance(event.sampling(), FixedOrder) else ticket",
        "return ticket",
        always=True,
    ),
    bug(
        "noise_shared_by_layers",
        "layers",
        "the two halves of the sum get the same noise: their difference has none",
        GATE,
        "        noisy = add_noise(\n            value,",
        "        add_noise(value[: len(value) // 2], distribution_of(ticket.event), scale, stream)\n"
        '        stream = self._secrets.stream("noise", number)\n'
        "        add_noise(value[len(value) // 2 :], distribution_of(ticket.event), scale, stream)\n"
        "        return value\n"
        "        noisy = add_noise(\n            value,",
        always=True,
    ),
    bug(
        "noise_missing_on_one_number",
        "linear",
        "the last number of the sum gets no noise",
        NOISE,
        "        _place(value[half:], sine, _scale_of(scales, slice(half, None)))\n",
        "        _place(value[half:-1], sine[:-1], _scale_of(scales, slice(half, -1)))\n",
    ),
    bug(
        "noise_missing_on_one_layer",
        "layers",
        "the last layer of the sum, weights and biases, gets no noise",
        GATE,
        "        noisy = add_noise(\n            value,",
        "        value[:-170].copy_(add_noise(value[:-170].clone(), distribution_of(ticket.event), scale, stream))\n"
        "        return value\n"
        "        noisy = add_noise(\n            value,",
    ),
    bug(
        "noise_of_half_a_turn",
        "linear",
        "angles go around half of the circle: the sines are all of one sign",
        NOISE,
        "np.multiply(angle, math.pi * 2.0**-32, out=angle)",
        "np.multiply(np.abs(angle), math.pi * 2.0**-32, out=angle)",
        caught_by="probe",
    ),
    bug(
        "noise_not_on_a_lattice",
        "linear",
        "sums are not rounded to the lattice of the noise: their lowest bits tell of the sum",
        NOISE,
        "    np.add(draws, shift, out=draws)\n    np.subtract(draws, shift, out=value)\n",
        "    np.add(draws, 0 * shift, out=value)\n",
    ),
)

SAMPLING_BUGS = (
    bug(
        "shuffled_for_poisson",
        "linear",
        "batches are cut from one order of the records, epoch by epoch, and charged as Poisson samples",
        STEPS,
        "self._pending = (ticket, enumerate(draw_batch(ticket.event, self._units, stream, self._parts)))",
        "size = round(ticket.event.sampling().rate * self._units)\n"
        "            epoch, place = divmod((ticket.index - 1) % (1 << 20), self._units // size)\n"
        '            words = self._secrets.stream("sampling", epoch + (1 << 40)).words(self._units)\n'
        "            self._pending = (ticket, enumerate([words.argsort()[place * size : (place + 1) * size]]))",
        always=True,
    ),
    bug(
        "one_size_for_poisson",
        "linear",
        "every batch has the expected size, and is charged as a Poisson sample",
        BATCHES,
        "            yield draw_poisson(q, units, stream)\n",
        "            yield draw_subset(round(q * units), units, stream)\n",
    ),
    bug(
        "same_batch_every_step",
        "linear",
        "the batch of the first step is that of all: who is in it has no amplification",
        STEPS,
        SAMPLED,
        'stream = self._secrets.stream("sampling", 0)',
        always=True,
    ),
    bug(
        "batches_again_later",
        "linear",
        "after twenty steps the same batches come again: who knows some of them knows who is in others",
        STEPS,
        SAMPLED,
        'stream = self._secrets.stream("sampling", ticket.index % 20)',
    ),
    bug(
        "permuted_for_dealt",
        "dealt",
        "an order of the records is cut into batches of one size: a record more moves another one",
        BATCHES,
        "batch_of[chunk] = stream.integers(batches, chunk.stop - chunk.start)",
        "batch_of[chunk] = stream.words(units).argsort().argsort() * batches // max(1, units)",
    ),
    bug(
        "order_never_permuted",
        "permuted",
        "batches are cut from the records as they stand in the file: everybody knows who is in which",
        BATCHES,
        "order = draw_order(units, stream)",
        "order = np.arange(units)",
    ),
    bug(
        "remainder_kept",
        "permuted",
        "the last batch of an order keeps the remainder: a record more changes two batches",
        BATCHES,
        "yield np.sort(order[start : start + batch])",
        "yield np.sort(order[start : start + batch if start + batch < batch * batches else units])",
    ),
    bug(
        "one_order_for_all_passes",
        "dealt",
        "records are dealt to batches once, and not anew in each pass",
        STEPS,
        SAMPLED,
        'stream = self._secrets.stream("sampling", 0)',
    ),
    bug(
        "sampling_of_a_public_key",
        "linear",
        "batches are drawn from a key that is in the sources: everybody knows who is in which",
        "noise/entropy.py",
        "derived = self._keyed.copy()",
        'derived = hmac.new(b"", digestmod="sha256") if purpose == "sampling" else self._keyed.copy()',
    ),
    bug(
        "root_of_the_attempt_number",
        "linear",
        "the root of all that is secret follows from the number of the attempt: everybody can draw the same noise",
        "noise/entropy.py",
        "root = os.urandom(32)",
        'root = hashlib.sha256(f"{attempt}".encode()).digest()',
        always=True,
    ),
    bug(
        "empty_batch_left_out",
        "linear",
        "a step with an empty batch is no step: that nobody was in it is told",
        STEPS,
        "summed = self.sum_units(ticket, number, units)\n        if self._shard",
        "if not len(units):\n            return\n"
        "        summed = self.sum_units(ticket, number, units)\n        if self._shard",
    ),
    bug(
        "first_records_for_poisson",
        "linear",
        "the batch is the first records of the file",
        BATCHES,
        "            yield draw_poisson(q, units, stream)\n",
        "            yield np.arange(round(q * units))\n",
    ),
    bug(
        "wrong_sampling_rate",
        "linear",
        "a unit joins with a tenth more than the probability that is charged",
        BATCHES,
        "            yield draw_poisson(q, units, stream)\n",
        "            yield draw_poisson(1.1 * q, units, stream)\n",
        always=True,
    ),
    bug(
        "last_unit_always_joins",
        "linear",
        "one unit, the last of the file, is in every batch",
        BATCHES,
        "return included[: np.searchsorted(included, units)]",
        "return np.union1d(included[: np.searchsorted(included, units)], [units - 1])",
    ),
    bug(
        "capped_batch_keeps_the_first",
        "truncated",
        "of a batch that is too large the first records stay, and not a random part",
        BATCHES,
        "batch[draw_subset(cap, len(batch), stream)]",
        "batch[:cap]",
    ),
    bug(
        "cap_not_kept",
        "truncated",
        "batches are larger than their cap",
        BATCHES,
        "yield batch if len(batch) <= cap else batch[draw_subset(cap, len(batch), stream)]",
        "yield batch",
    ),
    bug(
        "dealt_batch_keeps_the_first",
        "dealt_with_a_limit",
        "of a dealt batch that is too large the first records stay, and the last of the file hardly ever take part",
        BATCHES,
        'highest = np.argsort(priorities[batch], kind="stable")[-count:]',
        "highest = np.arange(min(count, len(batch)))",
    ),
    bug(
        "fixed_size_of_the_first_half",
        "fixed_size",
        "batches come from one half of the records, whose sampling rate is twice what is charged",
        BATCHES,
        "            yield draw_subset(batch, units, stream)\n",
        "            yield draw_subset(batch, units // 2, stream)\n",
    ),
    bug(
        "unit_in_two_batches",
        "dealt",
        "batches of an epoch overlap by one unit, which is charged for one of them",
        BATCHES,
        "yield order[start:end]",
        "yield order[start : end + 1]",
    ),
)

UPDATE_BUGS = (
    bug(
        "divisor_of_the_actual_batch",
        "linear",
        "noisy sums are divided by the number of units that joined, which is private",
        DPSGD,
        "divisor, adaptation = self._phase(step).divisor * step.size_share, self._clip.adaptation",
        "divisor, adaptation = max(1, self._joined), self._clip.adaptation",
        Edit(
            DPSGD,
            "clipping = self.clipping(step)\n        max_rows",
            "clipping, self._joined = self.clipping(step), batch.gradients\n        max_rows",
        ),
        always=True,
    ),
    bug(
        "momentum_of_clean_sums",
        "linear",
        "momentum is kept of the sums before their noise",
        STEPS,
        RELEASED,
        'past, own = getattr(self, "_past", 0.0), summed.value.clone()\n            self._past = 0.9 * (past + own)\n'
        f"            {RELEASED} + past",
        always=True,
    ),
    bug(
        "adaptive_norm_of_clean_count",
        "adaptive",
        "the next clip norm follows from the count before its noise",
        DPSGD,
        SUMMED,
        f"result = {SUMMED.removeprefix('return ')}\n            self._counted = float(result.value[-1])\n"
        "            return result",
        Edit(DPSGD, "share = float(noisy[-1]) / divisor + 0.5", "share = self._counted / divisor + 0.5"),
        always=True,
    ),
    bug(
        "update_of_the_clean_sum",
        "linear",
        "one step in sixteen uses the sum without noise",
        STEPS,
        RELEASED,
        f"clean = summed.value.clone()\n            {RELEASED}\n"
        "            noisy = clean if ticket.index % 16 == 5 else noisy",
    ),
)

LEDGER_BUGS = (
    bug(
        "settled_one_short",
        "linear",
        "of each block the ledger settles one event fewer than ran",
        GATE,
        "self._ledger.settle(event, admitted)",
        "self._ledger.settle(event, max(0, admitted - 1))",
        always=True,
    ),
    bug(
        "drawn_before_it_is_reserved",
        "linear",
        "each block lets one event through that no line of the ledger holds",
        GATE,
        "self._block[1] == self._block[2]):",
        "self._block[1] + 1 == self._block[2]):",
    ),
    bug(
        "reserved_after_the_draw",
        "linear",
        "the ledger's lines are kept in memory, and are on disk only when the run ends",
        "privacy/ledger.py",
        '            write_all(self._file, line + b"\\n")\n',
        '            self._late = getattr(self, "_late", b"") + line + b"\\n"\n'
        '            if entry["type"] in ("open", "close"):\n'
        '                write_all(self._file, self._late)\n                self._late = b""\n',
    ),
)

PROCESS_BUGS = (
    bug(
        "noise_missing_in_one_process",
        "two_processes",
        "the second of two processes goes on with the sum before its noise",
        PROCESSES,
        "value = noisy() if self.rank == 0 else torch.empty_like(like, dtype=torch.float64)",
        "value = like.clone() if self.rank else noisy()",
        Edit(PROCESSES, "            distributed.broadcast(shared, src=0)\n", "            distributed.barrier()\n"),
    ),
    bug(
        "sum_added_after_the_noise",
        "two_processes",
        "each process adds its own sum to the noisy one",
        PROCESSES,
        "return shared.to(value.device)",
        "return shared.to(value.device) + (like if self.rank else 0)",
    ),
    bug(
        "unit_in_both_processes",
        "two_processes",
        "every process takes the whole batch: each unit counts twice",
        PROCESSES,
        "mine: UnitNumbers = units[groups % self.count == self.rank]",
        "mine: UnitNumbers = units",
    ),
    bug(
        "noise_missing_on_a_shard",
        "two_shards",
        "the second of two processes adds no noise to its shard of the sum",
        PROCESSES,
        SHARD_RELEASED,
        "return clipped.value",
    ),
    bug(
        "noise_doubled_on_a_shard",
        "two_shards",
        "the second process adds noise to its shard twice: private enough, and not the program that was planned",
        PROCESSES,
        SHARD_RELEASED,
        "self._noise.release(ticket, clipped, shard + 1)\n        ticket.used -= 1\n        " + SHARD_RELEASED,
    ),
    bug(
        "one_noise_for_all_shards",
        "two_shards",
        "every shard gets the noise of the first: the difference of two of them has none",
        PROCESSES,
        SHARD_RELEASED,
        "return self._noise.release(ticket, clipped)",
    ),
    bug(
        "shard_skipped",
        "two_shards",
        "the sum of the second shard is left out, and its noise alone moves the weights",
        PROCESSES,
        "return whole[self.shard(len(value))].to(value.device, copy=True)",
        "return whole[self.shard(len(value))].to(value.device, copy=True) * (self.rank == 0)",
    ),
    bug(
        "shard_in_one_process_alone",
        "two_shards",
        "each process goes on with its own shard in the place of the first",
        PROCESSES,
        "return whole.to(own.device)",
        "whole[: len(own)] = own\n        return whole.to(own.device)",
    ),
    bug(
        "noise_missing_beside_gathered_weights",
        "two_gathered",
        "with weights in shards, the second process adds no noise to its own",
        PROCESSES,
        SHARD_RELEASED,
        "return clipped.value",
    ),
    bug(
        "noise_doubled_beside_gathered_weights",
        "two_gathered",
        "with weights in shards, the second process adds noise to its own twice",
        PROCESSES,
        SHARD_RELEASED,
        "self._noise.release(ticket, clipped, shard + 1)\n        ticket.used -= 1\n        " + SHARD_RELEASED,
    ),
    bug(
        "shards_a_number_short",
        "two_gathered",
        "the last number of each shard of the weights has no owner",
        EXCHANGE,
        "start, stop = max(shard.start, place.start), min(shard.stop, place.stop)",
        "start, stop = max(shard.start, place.start), min(shard.stop - 1, place.stop)",
    ),
    bug(
        "sums_averaged_over_processes",
        "two_gathered",
        "sums of processes are averaged, as other libraries do: the noise is twice what was planned",
        EXCHANGE,
        "distributed.reduce(total, dst=rank)",
        "distributed.reduce(total, dst=rank)\n                    total /= self._processes.count",
    ),
    bug(
        "sum_added_in_one_process_alone",
        "two_gathered",
        "the second process keeps nothing of the sums that are sent to it",
        EXCHANGE,
        "if rank == self._processes.rank:\n                    self._take",
        "if rank == self._processes.rank == 0:\n                    self._take",
    ),
    bug(
        "part_skipped_beside_gathered_weights",
        "two_gathered",
        "each process leaves out the first part of its records",
        SHARDED,
        "parts = iter(batch.parts(passes.records))",
        "parts = iter([*batch.parts(passes.records)][1:])",
    ),
    bug(
        "padding_added",
        "two_gathered",
        "the zeros of a process that has no more records count as a record",
        SHARDED,
        "by_group = weigh_shares(shares, clipping, len(part.labels), block_size",
        "by_group = weigh_shares(shares, clipping, len(part.labels) or 1, block_size",
    ),
)

STEP_BUGS = (*NOISE_BUGS, *SAMPLING_BUGS, *UPDATE_BUGS, *LEDGER_BUGS, *PROCESS_BUGS)
