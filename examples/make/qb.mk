# Include this file, and say for each MXQ what it is made of:
#
#   include qb.mk
#   build/digits.mxq: model.onnx calibration/000.npy calibration/001.npy …
#   build/digits.mxq: QB_FLAGS = --target-device regulus-rb --calib-data-path calibration
#
# The first prerequisite is the model. QB_SERVER, from the environment, names the server; without it the
# model is compiled on this machine. QB_FLAGS takes every option of `qbcompiler compile`.

QBCOMPILER ?= qbcompiler

%.mxq: %.flags
	$(QBCOMPILER) compile -q --model $(firstword $(filter-out %.flags,$^)) $(QB_FLAGS) --output $@

# written anew only when the options differ, so that a change of them counts as a change
%.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(QB_FLAGS) $(QB_SERVER)' | cmp -s - $@ || echo '$(QB_FLAGS) $(QB_SERVER)' > $@

.PHONY: FORCE
.PRECIOUS: %.flags
.DELETE_ON_ERROR:
