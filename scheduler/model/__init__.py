"""The data types of Leasehold: rows, requests, rules, decisions and the view, as immutable values. The modules of this
package do no input or output and read no clock.
"""
