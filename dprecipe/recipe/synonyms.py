"""The names other tools and papers use for what a recipe says: Opacus, TF Privacy, JAX Privacy, Lightning, Hugging
Face, gradient encoding, PATE, projected noisy SGD.

A name maps to the dotted path that holds the same idea (or none) and to what has to be done: often it is
not the same number that goes there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Synonym:
    """Where the idea lives here (empty: nowhere, on purpose), and what to do."""

    path: str
    remedy: str
    instead: Synonym | None = None
    """Where the idea lives in a recipe whose mechanism has no such path."""
    where: str = ""
    """A path that only those recipes have to which this applies; `path` itself where this is empty."""

    @property
    def choices(self) -> tuple[Synonym, ...]:
        """This one and what there is instead, in order."""
        return (self, *(() if self.instead is None else self.instead.choices))


_PATE = "mechanism.teachers"
_PNSGD = "mechanism.constraint"

_FEATURES = Synonym(
    "data.preprocess",
    "remove it, and end data.preprocess with clip_features: {norm: …}: gradients keep the bound that follows",
    where=_PNSGD,
)
_NO_CLIPPING = Synonym("", "remove it: one record moves one vote, and nothing is clipped", _FEATURES, where=_PATE)
_RECORDS_OF_A_STEP = Synonym("mechanism.batch_size", "set mechanism.batch_size: the records of one step")
_IN_ORDER = Synonym(
    "mechanism.order", "set mechanism.order to permuted or sequential: every record takes its turn", where=_PNSGD
)
_NO_SAMPLING = Synonym(
    "", "remove it: a teacher learns from all records of its part, and nothing is sampled", _IN_ORDER, where=_PATE
)
_SAMPLING = Synonym(
    "mechanism.sampling",
    "write mechanism.sampling: {scheme: …}",
    Synonym(
        "mechanism.order",
        "remove it: every record takes its turn, in mechanism.order; mechanism.batch_size is the records of one step",
        where=_PNSGD,
    ),
)
_CLIPPING = Synonym("mechanism.clip", "write mechanism.clip: {norm: …}", _FEATURES)
_CODEWORD = Synonym("mechanism.codebook.norm", "set mechanism.codebook.norm", _NO_CLIPPING)
_CLIP = Synonym("mechanism.clip.norm", "set mechanism.clip.norm", _CODEWORD)
_OF_VOTES = Synonym(
    "mechanism.aggregator.noise.multiplier",
    "set mechanism.aggregator.noise.multiplier: the scale of the noise in votes, or `auto` to have it solved",
)
_MULTIPLIER = Synonym(
    "mechanism.noise.multiplier", "set mechanism.noise.multiplier, or `auto` to have it solved", _OF_VOTES
)
_OVER_LIPSCHITZ = "set mechanism.noise.multiplier: the noise's scale divided by the Lipschitz constant that plan shows"
_DEVIATION = Synonym(
    "mechanism.noise.multiplier",
    _OVER_LIPSCHITZ,
    Synonym(
        "mechanism.noise.multiplier",
        "set mechanism.noise.multiplier: the deviation divided by the norm of clip or codebook",
        _OF_VOTES,
    ),
    where=_PNSGD,
)
_SCALE = Synonym(
    "mechanism.noise.multiplier",
    _OVER_LIPSCHITZ,
    Synonym(
        "mechanism.noise.multiplier",
        "set mechanism.noise.multiplier: the scale divided by the norm of clip or codebook",
        _OF_VOTES,
    ),
    where=_PNSGD,
)
_FAMILY = Synonym(
    "mechanism.noise.family",
    "set mechanism.noise.family",
    Synonym("mechanism.aggregator.noise.family", "set mechanism.aggregator.noise.family"),
)
_FREEDOM = Synonym("mechanism.noise.df", "set mechanism.noise.df: degrees of freedom, for student_t")
_SHAPE = Synonym("mechanism.noise.shape", "set mechanism.noise.shape: λ, for variance_gamma")
_EPSILON = Synonym("budget.epsilon", "set budget.epsilon")
_DELTA = Synonym("budget.delta", "set budget.delta")
_EPOCHS = Synonym(
    "training.epochs",
    "set training.epochs for the student, mechanism.teachers.training.epochs for the teachers",
    Synonym("training.epochs", "set training.epochs, or `auto` to run until the budget ends"),
    where=_PATE,
)
_STEPS = Synonym(
    "training.steps",
    "set training.steps for the student, mechanism.teachers.training.steps for the teachers",
    Synonym("training.steps", "set training.steps: noisy updates, not epochs"),
    where=_PATE,
)
_PHYSICAL = Synonym("runtime.physical_batch", "set runtime.physical_batch: records held in memory at once")
_ACCUMULATE = Synonym(
    "mechanism.batch_size",
    "remove it, and set mechanism.batch_size to the records of one step",
    Synonym(
        "runtime.physical_batch",
        "remove it: lots are split by themselves; set mechanism.sampling.batch_size to the records of one update "
        "and runtime.physical_batch to what fits in memory",
    ),
    where=_PNSGD,
)
_MICROBATCHES = Synonym(
    "mechanism.microbatch",
    "set mechanism.microbatch to the units that share a code; 1 needs least noise",
    Synonym("", "remove it: gradients are clipped record by record; runtime.physical_batch bounds the memory"),
)
_MICROBATCH = Synonym(_MICROBATCHES.path, _MICROBATCHES.remedy, _PHYSICAL)
_LOT = Synonym(
    "mechanism.sampling.batch_size",
    "set mechanism.sampling.batch_size: the expected records of one update",
    Synonym(
        "training.batch_size",
        "set training.batch_size for the student, mechanism.teachers.training.batch_size for the teachers",
        _RECORDS_OF_A_STEP,
        where=_PATE,
    ),
)
_RATE = Synonym(
    "mechanism.sampling.batch_size", "set mechanism.sampling.batch_size to the rate times data.size", _NO_SAMPLING
)
_POISSON = Synonym(
    "mechanism.sampling.scheme", "write mechanism.sampling: {scheme: poisson, batch_size: …}", _NO_SAMPLING
)
_SHUFFLE = Synonym(
    "mechanism.sampling.scheme",
    "write mechanism.sampling: {scheme: shuffle, batch_size: …}; it is accounted without amplification",
    _NO_SAMPLING,
)
_PER_LAYER = Synonym(
    "mechanism.groups",
    "set mechanism.groups to layer",
    Synonym(
        "mechanism.clip.mode",
        "write mechanism.clip: {mode: per_layer, norm: …}",
        Synonym("", "remove it: one norm bounds the gradient of all parameters together"),
    ),
)
_NORMS = Synonym(
    "mechanism.clip.norms", "write mechanism.clip: {mode: per_layer, norms: […]}, one for each layer", _NO_CLIPPING
)
_ADAPTIVE = Synonym("mechanism.clip.mode", "write mechanism.clip: {mode: adaptive, norm: …}", _NO_CLIPPING)
_AUTOMATIC = Synonym("mechanism.clip.mode", "write mechanism.clip: {mode: automatic, norm: …}", _NO_CLIPPING)
_QUANTILE = Synonym("mechanism.clip.quantile", "set mechanism.clip.quantile, with mode: adaptive", _NO_CLIPPING)
_NORM_RATE = Synonym(
    "mechanism.clip.learning_rate", "set mechanism.clip.learning_rate, with mode: adaptive", _NO_CLIPPING
)
_COUNT_NOISE = Synonym(
    "mechanism.clip.count_noise",
    "set mechanism.clip.count_noise: the deviation of the noise on the count, in units, with mode: adaptive",
    _NO_CLIPPING,
)
_NO_RANGE = Synonym("", "remove it: the adaptive clip norm has no bounds of its own, every one is sound")
_GHOST = Synonym("", "remove it: how clipped sums are taken is chosen layer by layer, for speed alone")
_COPIES = Synonym(
    "mechanism.augmentations", "set mechanism.augmentations: copies of each record, each augmented by itself"
)
_NOISE_SCHEDULE = Synonym(
    "mechanism.noise.multiplier", "write mechanism.noise.multiplier: {schedule: linear, from: …, to: …}"
)
_NORM_SCHEDULE = Synonym(
    "mechanism.clip.norm", "write mechanism.clip.norm: {schedule: linear, from: …, to: …}", _NO_CLIPPING
)
_CAP = Synonym(
    "mechanism.sampling.max_batch_size",
    "write mechanism.sampling: {scheme: truncated_poisson, batch_size: …, max_batch_size: …}",
    _NO_SAMPLING,
)
_WITHOUT_REPLACEMENT = Synonym(
    "mechanism.sampling.scheme",
    "write mechanism.sampling: {scheme: fixed_size, batch_size: …}; its guarantee is for replace_one alone",
    _NO_SAMPLING,
)
_LAYER_NOISE = Synonym("mechanism.group_noise", "set mechanism.group_noise, with mechanism.groups: layer")
_ENCODING = Synonym("mechanism.kind", "set mechanism.kind to encoded")
_CODEBOOK = Synonym("mechanism.codebook", "write mechanism.codebook: {source: …}")
_CODEBOOK_SIZE = Synonym("mechanism.codebook.size", "set mechanism.codebook.size")
_CODEBOOK_SEED = Synonym("mechanism.codebook.seed", "set mechanism.codebook.seed: it is public")
_CODEBOOK_FILE = Synonym("mechanism.codebook.path", "write mechanism.codebook: {source: file, path: …}")
_DENOISE = Synonym("mechanism.denoise", "set mechanism.denoise to kolmogorov_smirnov or none")
_SECURE = Synonym("", "remove it: the noise always comes from a cryptographic generator")
_NOISE_SEED = Synonym("", "remove it: a known seed undoes the noise; runtime.seed is for the initial weights")
_RELATION = Synonym(
    "budget.neighbouring",
    "set budget.neighbouring to replace_one or zero_out_one",
    Synonym("budget.neighbouring", "set budget.neighbouring to add_or_remove_one or replace_one"),
    where=_PNSGD,
)
_ORDERS = Synonym("", "remove it: the accountant chooses its own orders and grid")
_DIVISOR = Synonym("", "remove it: the noisy sum is always divided by the public expected lot size")
_RATE_OF_LEARNING = Synonym(
    "mechanism.learning_rate",
    "set mechanism.learning_rate: a number or a schedule",
    Synonym("training.optimizer.lr", "set training.optimizer.lr"),
    where=_PNSGD,
)
_SHRINKING = Synonym(
    "model.l2",
    "set model.l2: it makes steps contract",
    Synonym("training.optimizer.weight_decay", "set training.optimizer.weight_decay"),
    where=_PNSGD,
)
_SET = Synonym("mechanism.constraint", "write mechanism.constraint: {kind: ball, radius: …} or {kind: box, bound: …}")
_RADIUS = Synonym("mechanism.constraint.radius", "set mechanism.constraint.radius")
_DIAMETER = Synonym("mechanism.constraint.radius", "set mechanism.constraint.radius, to half the diameter")
_LIPSCHITZ = Synonym(
    "mechanism.constants.lipschitz", "remove it: it is derived from the model; mechanism.constants.lipschitz rounds it"
)
_SMOOTHNESS = Synonym(
    "mechanism.constants.smoothness",
    "remove it: it is derived from the model; mechanism.constants.smoothness rounds it",
)
_CONVEXITY = Synonym(
    "mechanism.constants.strong_convexity",
    "set model.l2, from which it follows; mechanism.constants.strong_convexity rounds it",
)
_STOP = Synonym("mechanism.stop", "set mechanism.stop to last or random")
_HIDING = Synonym("mechanism.iterates", "remove it: nobody sees an iterate but the last")
_SIZE = Synonym("data.size", "set data.size: the declared, public number of training records")
_UNIT = Synonym("data.unit", "write data.unit: {column: …, max_records: …}")
_DEVICE = Synonym("runtime.device", "set runtime.device to auto, cpu, cuda or mps")
_PROCESSES = Synonym("runtime.processes", "set runtime.processes; for several machines start it by torchrun")
_PRECISION = Synonym("runtime.precision", "set runtime.precision to 32 or bf16")
_INIT = Synonym("model.init", "set model.init to a safetensors file of weights learned from public data alone")
_LORA = Synonym("model.lora", "write model.lora: {rank: …, alpha: …}, with model.init")
_WIDTH = Synonym("model.width", "set model.width")
_AVERAGE = Synonym("training.average", "write training.average: {kind: ema, decay: …}")
_TRAINER = Synonym("", "remove it: the trainer is set up by the plan, so that nothing can break its guarantee")
_TEST = Synonym("data.test", "declare the held-out records as data.test; splitting off private ones is not done")
_TRAIN_DATA = Synonym("data.train", "write data.train: {source: …}")
_CLASSES = Synonym("data.train.classes", "declare the classes in data.train")
_NO_STOP = Synonym("", "remove it: stopping on a private metric would spend privacy; the budget ends the run")
_TEACHERS = Synonym("mechanism.teachers.count", "set mechanism.teachers.count")
_TEACHER_MODEL = Synonym("mechanism.teachers.model", "write mechanism.teachers.model: {kind: …}")
_TEACHER_EPOCHS = Synonym("mechanism.teachers.training.epochs", "set mechanism.teachers.training.epochs")
_TEACHER_BATCH = Synonym("mechanism.teachers.training.batch_size", "set mechanism.teachers.training.batch_size")
_VOTES = Synonym("mechanism.teachers.votes", "write mechanism.teachers.votes: {path: …}")
_RECORD_NAME = Synonym("mechanism.teachers.identity", "set mechanism.teachers.identity to the column's name")
_PUBLIC = Synonym("data.public", "write data.public: {source: …}")
_AGGREGATOR = Synonym("mechanism.aggregator.kind", "write mechanism.aggregator: {kind: …}")
_LAPLACE = Synonym(
    _OF_VOTES.path, "write mechanism.aggregator: {kind: lnmax, noise: {family: laplace, multiplier: …}}, in votes"
)
_INVERSE = Synonym(
    _OF_VOTES.path, "write mechanism.aggregator: {kind: lnmax, noise: {family: laplace, multiplier: …}}: 1 over it"
)
_SELECTION_NOISE = Synonym(
    "mechanism.aggregator.selection.noise.multiplier",
    "set mechanism.aggregator.selection.noise.multiplier: the deviation in votes",
)
_THRESHOLD = Synonym("mechanism.aggregator.selection.threshold", "set mechanism.aggregator.selection.threshold")
_CONFIDENCE = Synonym("mechanism.aggregator.interaction.confidence", "set mechanism.aggregator.interaction.confidence")
_QUERIES = Synonym("mechanism.queries.max", "set mechanism.queries.max, or `auto` to ask as much as the budget holds")
_ANSWERS = Synonym("mechanism.queries.answers", "set mechanism.queries.answers")
_SANITIZE = Synonym("mechanism.sanitize", "write mechanism.sanitize: {method: smooth_sensitivity, …}")
_ANALYSIS = Synonym("mechanism.analysis", "set mechanism.analysis to data_dependent")
_VAT = Synonym("training.semi_supervised", "write training.semi_supervised: {kind: vat}")
_POWER = Synonym("training.semi_supervised.power_iterations", "set training.semi_supervised.power_iterations")

SYNONYMS: dict[str, Synonym] = {
    # Opacus
    "max_grad_norm": _CLIP,
    "target_epsilon": _EPSILON,
    "target_delta": _DELTA,
    "noise_multiplier": _MULTIPLIER,
    "max_physical_batch_size": _PHYSICAL,
    "poisson_sampling": _POISSON,
    "secure_mode": _SECURE,
    "noise_generator": _NOISE_SEED,
    "noise_seed": _NOISE_SEED,
    "loss_reduction": _DIVISOR,
    "expected_batch_size": _LOT,
    "sample_rate": _RATE,
    "alphas": _ORDERS,
    "grad_sample_mode": _TRAINER,
    "max_grad_norm_per_layer": _NORMS,
    "max_per_layer_grad_norm": _NORMS,
    "max_grad_norms": _NORMS,
    "clip_norms": _NORMS,
    "per_layer_clipping": _PER_LAYER,
    "layerwise_clipping": _PER_LAYER,
    "per_layer_clip": _PER_LAYER,
    "adaptive_clipping": _ADAPTIVE,
    "adaclip": _ADAPTIVE,
    "automatic_clipping": _AUTOMATIC,
    "auto_clipping": _AUTOMATIC,
    "target_unclipped_quantile": _QUANTILE,
    "clipped_quantile": _QUANTILE,
    "clipbound_learning_rate": _NORM_RATE,
    "unclipped_num_std": _COUNT_NOISE,
    "clipped_count_stddev": _COUNT_NOISE,
    "min_clipbound": _NO_RANGE,
    "max_clipbound": _NO_RANGE,
    "ghost_clipping": _GHOST,
    "ghost": _GHOST,
    "ghost_norm": _GHOST,
    "noise_scheduler": _NOISE_SCHEDULE,
    "noise_schedule": _NOISE_SCHEDULE,
    "grad_clip_scheduler": _NORM_SCHEDULE,
    "clip_schedule": _NORM_SCHEDULE,
    # TF Privacy
    "l2_norm_clip": _CLIP,
    "num_microbatches": _MICROBATCHES,
    "stddev": _DEVIATION,
    "noise_std": _DEVIATION,
    "noise_stddev": _DEVIATION,
    "rdp_orders": _ORDERS,
    "orders": _ORDERS,
    "number_of_examples": _SIZE,
    # JAX Privacy
    "clipping_norm": _CLIP,
    "l2_clip_norm": _CLIP,
    "l2_clip": _CLIP,
    "clip_norm": _CLIP,
    "max_norm": _CLIP,
    "microbatch_size": _MICROBATCH,
    "normalize_by": _DIVISOR,
    "truncated_batch_size": _CAP,
    "truncated_poisson": _CAP,
    "sampling_without_replacement": _WITHOUT_REPLACEMENT,
    "without_replacement": _WITHOUT_REPLACEMENT,
    "augmult": _COPIES,
    "augmentation_multiplicity": _COPIES,
    "num_augmentations": _COPIES,
    "rescale_to_unit_norm": _DIVISOR,
    "sampling_prob": _RATE,
    "neighboring_relation": _RELATION,
    # gradient encoding
    "gradient_encoding": _ENCODING,
    "codewords": _CODEBOOK,
    "codebook_size": _CODEBOOK_SIZE,
    "num_codewords": _CODEBOOK_SIZE,
    "n_codewords": _CODEBOOK_SIZE,
    "codebook_seed": _CODEBOOK_SEED,
    "codebook_norm": _CODEWORD,
    "codeword_norm": _CODEWORD,
    "codebook_file": _CODEBOOK_FILE,
    "codebook_path": _CODEBOOK_FILE,
    "denoising": _DENOISE,
    "denoising_method": _DENOISE,
    "micro_batch": _MICROBATCH,
    "micro_batch_size": _MICROBATCH,
    "micro_batches": _MICROBATCHES,
    "num_micro_batches": _MICROBATCHES,
    "per_layer": _PER_LAYER,
    "layerwise": _PER_LAYER,
    "per_layer_noise": _LAYER_NOISE,
    "layer_noise": _LAYER_NOISE,
    "noise_family": _FAMILY,
    "noise_type": _FAMILY,
    "noise_distribution": _FAMILY,
    # PATE: the authors' code, autodp, common teaching code
    "num_teachers": _TEACHERS,
    "nb_teachers": _TEACHERS,
    "n_teachers": _TEACHERS,
    "number_of_teachers": _TEACHERS,
    "num_partitions": _TEACHERS,
    "num_shards": _TEACHERS,
    "teacher_model": _TEACHER_MODEL,
    "teacher_epochs": _TEACHER_EPOCHS,
    "teacher_batch_size": _TEACHER_BATCH,
    "votes_file": _VOTES,
    "votes_path": _VOTES,
    "counts_file": _VOTES,
    "teacher_votes": _VOTES,
    "teacher_preds": _VOTES,
    "teacher_predictions": _VOTES,
    "record_id": _RECORD_NAME,
    "aggregation": _AGGREGATOR,
    "aggregation_mechanism": _AGGREGATOR,
    "lap_scale": _LAPLACE,
    "laplace_scale": _LAPLACE,
    "noise_eps": _INVERSE,
    "inverse_scale": _INVERSE,
    "sigma1": _SELECTION_NOISE,
    "sigma_1": _SELECTION_NOISE,
    "sigma_threshold": _SELECTION_NOISE,
    "sigma2": _OF_VOTES,
    "sigma_2": _OF_VOTES,
    "sigma_gnmax": _OF_VOTES,
    "gnmax_sigma": _OF_VOTES,
    "vote_threshold": _THRESHOLD,
    "consensus_threshold": _THRESHOLD,
    "student_confidence": _CONFIDENCE,
    "num_queries": _QUERIES,
    "nb_queries": _QUERIES,
    "n_queries": _QUERIES,
    "max_queries": _QUERIES,
    "stdnt_share": _QUERIES,
    "student_queries": _QUERIES,
    "max_answers": _ANSWERS,
    "max_answered": _ANSWERS,
    "num_answers": _ANSWERS,
    "smooth_sens": _SANITIZE,
    "data_dependent": _ANALYSIS,
    "data_dependent_analysis": _ANALYSIS,
    "unlabeled": _PUBLIC,
    "unlabelled": _PUBLIC,
    "unlabeled_data": _PUBLIC,
    "unlabelled_data": _PUBLIC,
    "public_data": _PUBLIC,
    "student_data": _PUBLIC,
    "vat": _VAT,
    "num_power_iterations": _POWER,
    # projected noisy SGD: papers, and words of the other mechanisms
    "clip": _CLIPPING,
    "clipping": _CLIPPING,
    "sampling": _SAMPLING,
    "projection": _SET,
    "project": _SET,
    "constraint_set": _SET,
    "domain": _SET,
    "projection_radius": _RADIUS,
    "max_weight_norm": _RADIUS,
    "diameter": _DIAMETER,
    "lipschitz_constant": _LIPSCHITZ,
    "smoothness_constant": _SMOOTHNESS,
    "convexity": _CONVEXITY,
    "rho": _CONVEXITY,
    "step_size": _RATE_OF_LEARNING,
    "stepsize": _RATE_OF_LEARNING,
    "eta": _RATE_OF_LEARNING,
    "lr": _RATE_OF_LEARNING,
    "l2_regularization": _SHRINKING,
    "l2_reg": _SHRINKING,
    "reg_lambda": _SHRINKING,
    "weight_decay": _SHRINKING,
    "permutation": _IN_ORDER,
    "stopping_time": _STOP,
    "random_stop": _STOP,
    "random_stopping": _STOP,
    "hide_iterates": _HIDING,
    "passes": _EPOCHS,
    "num_passes": _EPOCHS,
    "mini_batch_size": _LOT,
    "minibatch_size": _LOT,
    # the field's own symbols
    "sigma": _MULTIPLIER,
    "noise_scale": _MULTIPLIER,
    "eps": _EPSILON,
    "epsilon_budget": _EPSILON,
    "max_epsilon": _EPSILON,
    "lot_size": _LOT,
    "sampling_rate": _RATE,
    "sampling_probability": _RATE,
    "adjacency": _RELATION,
    "neighboring": _RELATION,
    "neighbors": _RELATION,
    "neighbours": _RELATION,
    # Lightning
    "max_epochs": _EPOCHS,
    "max_steps": _STEPS,
    "gradient_clip_val": _CLIP,
    "accumulate_grad_batches": _ACCUMULATE,
    "accelerator": _DEVICE,
    "devices": _DEVICE,
    "gpus": _DEVICE,
    "num_processes": _PROCESSES,
    "nproc_per_node": _PROCESSES,
    "num_gpus": _PROCESSES,
    "world_size": _PROCESSES,
    "amp": _PRECISION,
    "mixed_precision": _PRECISION,
    "dtype": _PRECISION,
    "strategy": _TRAINER,
    "callbacks": _TRAINER,
    "limit_train_batches": _TRAINER,
    "min_epochs": _TRAINER,
    "min_steps": _TRAINER,
    "enable_checkpointing": _TRAINER,
    "early_stopping": _NO_STOP,
    "val_split": _TEST,
    "validation_split": _TEST,
    "test_split": _TEST,
    "validation": _TEST,
    "val": _TEST,
    # Hugging Face and common training scripts
    "num_epochs": _EPOCHS,
    "n_epochs": _EPOCHS,
    "num_train_epochs": _EPOCHS,
    "num_steps": _STEPS,
    "total_steps": _STEPS,
    "iterations": _STEPS,
    "num_iterations": _STEPS,
    "gradient_accumulation_steps": _ACCUMULATE,
    "gradient_accumulation": _ACCUMULATE,
    "grad_accumulation": _ACCUMULATE,
    "grad_accum_steps": _ACCUMULATE,
    "per_device_train_batch_size": _LOT,
    "train_batch_size": _LOT,
    "batch_size": _LOT,
    "learning_rate": _RATE_OF_LEARNING,
    "shuffle": _SHUFFLE,
    "init_from": _INIT,
    "init_weights": _INIT,
    "pretrained": _INIT,
    "pretrained_weights": _INIT,
    "lora_rank": _LORA,
    "lora_r": _LORA,
    "lora_alpha": _LORA,
    "widen_factor": _WIDTH,
    "d_model": _WIDTH,
    "ema": _AVERAGE,
    "ema_decay": _AVERAGE,
    "num_examples": _SIZE,
    "num_samples": _SIZE,
    "num_train_examples": _SIZE,
    "dataset_size": _SIZE,
    "train_size": _SIZE,
    "n_train": _SIZE,
    "user_id": _UNIT,
    "user_column": _UNIT,
    "privacy_unit": _UNIT,
    "dataset": _TRAIN_DATA,
    "train_data": _TRAIN_DATA,
    "num_classes": _CLASSES,
    "n_classes": _CLASSES,
}

NOISE: dict[str, Synonym] = {
    "scale": _SCALE,
    "std": _DEVIATION,
    "nu": _FREEDOM,
    "dof": _FREEDOM,
    "degrees_of_freedom": _FREEDOM,
    "lambda": _SHAPE,
    "lam": _SHAPE,
    "lambda_": _SHAPE,
}
"""Names that mean this in a noise block, and elsewhere something else or nothing."""

WORDS: dict[str, str] = {
    "dp-sgd": "dpsgd",
    "quantile": "adaptive",
    "auto_s": "automatic",
    "auto-s": "automatic",
    "normalize": "automatic",
    "normalized": "automatic",
    "without_replacement": "fixed_size",
    "fixed": "fixed_size",
    "subset": "fixed_size",
    "truncated": "truncated_poisson",
    "dp_sgd": "dpsgd",
    "gradient_encoding": "encoded",
    "private_aggregation_of_teacher_ensembles": "pate",
    "projected_noisy_sgd": "pnsgd",
    "projected_sgd": "pnsgd",
    "noisy_sgd": "pnsgd",
    "psgd": "pnsgd",
    "svm": "huber_svm",
    "linear_svm": "huber_svm",
    "hinge": "huber_svm",
    "ridge": "least_squares",
    "linear": "least_squares",
    "linear_regression": "least_squares",
    "huber": "huber_regression",
    "mean": "location",
    "l2_ball": "ball",
    "sphere": "ball",
    "interval": "box",
    "cube": "box",
    "linf_ball": "box",
    "in_order": "sequential",
    "permutation": "permuted",
    "random_order": "permuted",
    "uniform": "random",
    "zero_out": "zero_out_one",
    "gn_max": "gnmax",
    "ln_max": "lnmax",
    "confident": "confident_gnmax",
    "interactive": "interactive_gnmax",
    "dependent": "data_dependent",
    "independent": "data_independent",
    "smooth": "smooth_sensitivity",
    "virtual_adversarial_training": "vat",
    "forest": "random_forest",
    "rf": "random_forest",
    "gbm": "gradient_boosting",
    "gbdt": "gradient_boosting",
    "xgboost": "gradient_boosting",
    "boosting": "gradient_boosting",
    "normal": "gaussian",
    "gauss": "gaussian",
    "student": "student_t",
    "t": "student_t",
    "double_exponential": "laplace",
    "lorentz": "cauchy",
    "vg": "variance_gamma",
    "hyperbolic_secant": "sech",
    "ks": "kolmogorov_smirnov",
    "off": "none",
    "no": "none",
    "global": "model",
    "flat": "model",
    "per_layer": "layer",
    "layerwise": "layer",
    "layer": "group",
    "record": "unit",
    "example": "unit",
    "npz": "file",
    "add_remove": "add_or_remove_one",
    "add_or_remove": "add_or_remove_one",
    "unbounded": "add_or_remove_one",
    "replace": "replace_one",
    "substitute": "replace_one",
    "substitution": "replace_one",
    "bounded": "replace_one",
    "prv": "pld",
    "moments": "rdp",
    "moments_accountant": "rdp",
    "renyi": "rdp",
    "gpu": "cuda",
    "adamw": "adam",
    "logistic": "logistic_regression",
    "logreg": "logistic_regression",
    "softmax": "logistic_regression",
    "convnet": "cnn",
    "full": "full_batch",
    "shuffled": "shuffle",
    "sklearn": "digits",
    "mnist": "idx",
    "numpy": "npz",
}
"""Words other tools use for a value, by our own; used only where our word is possible."""
