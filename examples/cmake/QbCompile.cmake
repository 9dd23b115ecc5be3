# qb_compile_model(TARGET name MODEL model.onnx CALIBRATION folder DEVICE regulus-rb
#                  [OUTPUT model.mxq] [PRESET name] [CONFIG file] [SCHEME name]
#                  [INPUT_SHAPES x=1,3,48,192 …])
#
# Adds a target that compiles a model to an MXQ, on the server that QB_SERVER (a CMake or environment
# variable) names, or on this machine where it is unset. It is made again only when the model, a
# calibration sample, the configuration or an option has changed. The file is where OUTPUT says, below
# the build folder; the target's property QB_MXQ has its path.

find_program(QBCOMPILER qbcompiler REQUIRED DOC "The compiler's command, also the server's client")

function(qb_compile_model)
  cmake_parse_arguments(PARSE_ARGV 0 qb "" "TARGET;MODEL;CALIBRATION;DEVICE;OUTPUT;PRESET;CONFIG;SCHEME"
                        "INPUT_SHAPES")
  foreach(name TARGET MODEL CALIBRATION DEVICE)
    if(NOT qb_${name})
      message(FATAL_ERROR "qb_compile_model: ${name} is missing")
    endif()
  endforeach()
  if(qb_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "qb_compile_model: unknown arguments ${qb_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT qb_OUTPUT)
    set(qb_OUTPUT "${qb_TARGET}.mxq")
  endif()

  get_filename_component(model "${qb_MODEL}" ABSOLUTE)
  get_filename_component(calibration "${qb_CALIBRATION}" ABSOLUTE)
  get_filename_component(output "${qb_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  # CONFIGURE_DEPENDS looks again at each build, so that a new sample counts as a change
  file(GLOB_RECURSE samples CONFIGURE_DEPENDS "${calibration}/*")

  set(command ${QBCOMPILER} compile -q --model ${model} --calib-data-path ${calibration}
              --target-device ${qb_DEVICE} --output ${output})
  set(inputs ${model} ${samples})
  if(qb_PRESET)
    list(APPEND command --config-preset ${qb_PRESET})
  endif()
  if(qb_SCHEME)
    list(APPEND command --inference-scheme ${qb_SCHEME})
  endif()
  if(qb_CONFIG)
    get_filename_component(config "${qb_CONFIG}" ABSOLUTE)
    list(APPEND command --compile-config ${config})
    list(APPEND inputs ${config})
  endif()
  foreach(shape IN LISTS qb_INPUT_SHAPES)
    list(APPEND command --input-shape ${shape})
  endforeach()
  if(QB_SERVER)
    list(APPEND command --server ${QB_SERVER})
  endif()

  add_custom_command(OUTPUT ${output} COMMAND ${command} DEPENDS ${inputs} VERBATIM
                     COMMENT "Compiling ${qb_MODEL} for ${qb_DEVICE}")
  add_custom_target(${qb_TARGET} ALL DEPENDS ${output})
  set_target_properties(${qb_TARGET} PROPERTIES QB_MXQ ${output})
endfunction()
