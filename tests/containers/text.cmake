# The Text container as a program that answers requests, for tests/python/test_tokenizers_*.py and test_chat_*.py.
find_package(Threads REQUIRED)
add_executable(text-tool "${CMAKE_CURRENT_LIST_DIR}/text-tool.cpp")
target_link_libraries(text-tool PRIVATE buddy::containers Threads::Threads)
